"""What a graph computes does not depend on the dialect that it is lowered to.

The fused form is run as it is, by ONNX Runtime from the bodies that it carries; each dialect is held to that
on every kind of mask, on every runtime that reads it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import tiny
from isorun.errors import UnsupportedModel
from isorun.graph.io import files
from isorun.graph.ops import functions, lower
from isorun.models import checkpoint

Run = Callable[[Path, dict[str, np.ndarray]], list[np.ndarray]]


def openvino(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(feeds)
    return [results[output].copy() for output in compiled.outputs]


def reference(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path)).run(None, feeds)


READERS: list[tuple[str, Run]] = [
    ("com.microsoft", exports.run),
    ("onnx", exports.run),
    ("primitive", exports.run),
    ("onnx", openvino),
    ("primitive", openvino),
    ("primitive", reference),
]


def lowered(fused: Path, dialect: str, folder: Path) -> Path:
    path = folder / f"{dialect}.onnx"
    files.write(lower.lower(files.read(fused), dialect), path, beside_above=0)
    return path


def difference(fused: Path, path: Path, run: Run, kind: str, seed: int = 0) -> float:
    """The largest difference in any output, on random feeds of two shapes."""
    largest = 0.0
    for batch, length in ((3, 9), (1, tiny.POSITIONS)):
        feeds = tiny.feeds(batch, length, kind=kind, seed=seed)
        for expected, output in zip(exports.run(fused, feeds), run(path, feeds), strict=True):
            assert output.dtype == expected.dtype
            assert output.shape == expected.shape
            if not np.isfinite(output).all():
                return float("inf")
            largest = max(largest, float(abs(output - expected).max()))
    return largest


TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["gelu", "gelu_new"])
def fused(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    heads = {"gelu": "BertForSequenceClassification", "gelu_new": "BertForQuestionAnswering"}
    head = {"gelu": "sequence", "gelu_new": "question"}[request.param]
    settings = {"hidden_act": request.param, "architectures": [heads[request.param]], "num_labels": tiny.LABELS}
    checkpoint.build(tiny.write_checkpoint(folder / "tiny", tiny.weights(head=head), **settings), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.fixture(scope="module")
def dialects(fused, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lowered")
    return {dialect: lowered(fused, dialect, folder) for dialect in functions.dialects()}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("kind", tiny.MASKS)
@pytest.mark.parametrize(("dialect", "run"), READERS, ids=[f"{dialect}-{run.__name__}" for dialect, run in READERS])
def test_a_dialect_computes_what_the_fused_graph_does(fused, dialects, dialect, run, kind):
    assert difference(fused, dialects[dialect], run, kind) < TOLERANCE


def test_a_mask_is_zero_or_anything_else(fused, dialects):
    """As where the models come from: what is not 0 is attended to."""
    feeds = tiny.feeds(2, 6, kind="holes")
    odd = {**feeds, "attention_mask": feeds["attention_mask"] * np.array([7, -1, 1, 2**40, 2, 3])}
    for path in (fused, *dialects.values()):
        for expected, output in zip(exports.run(path, feeds), exports.run(path, odd), strict=True):
            np.testing.assert_array_equal(expected, output)


@pytest.mark.parametrize("dialect", functions.dialects())
def test_what_comes_out_is_a_sound_model_in_the_dialects_opset_alone(dialects, dialect):
    model = onnx.load(dialects[dialect])
    onnx.checker.check_model(model)
    assert not model.functions
    domains = {opset.domain: opset.version for opset in model.opset_import}
    assert domains[""] == functions.opset(dialect)
    own = {"com.microsoft"} if dialect.startswith("com.microsoft") else set()
    assert {node.domain for node in model.graph.node} == {"", *own}
    assert set(domains) == {"", *own}


@pytest.mark.parametrize("dialect", functions.dialects())
def test_inputs_outputs_and_names_stay(fused, dialects, dialect):
    before, after = onnx.load(fused).graph, onnx.load(dialects[dialect]).graph
    assert list(before.input) == list(after.input)
    assert list(before.output) == list(after.output)


def kinds(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def test_fused_operators_become_the_runtimes_own(dialects):
    counts = kinds(dialects["com.microsoft"])
    assert (counts["EmbedLayerNormalization"], counts["Attention"], counts["LayerNormalization"]) == (1, 2, 4)
    assert counts["BiasGelu"] + counts["FastGelu"] == 2
    counts = kinds(dialects["onnx"])
    assert (counts["Attention"], counts["LayerNormalization"], counts["Gelu"]) == (2, 5, 2)


@pytest.mark.parametrize(
    ("dialect", "once"),
    [
        ("onnx", {"Where": 1, "Expand": 1, "Cast": 1}),
        ("primitive", {"Where": 1, "Cast": 1}),
        ("com.microsoft", {"Cast": 5}),  # three of the ids and two of the mask
    ],
)
def test_the_mask_is_computed_once_for_all_layers(dialects, dialect, once):
    counts = kinds(dialects[dialect])
    assert {name: counts[name] for name in once} == once


def test_lowering_leaves_the_file_it_read_alone(fused, tmp_path):
    before = fused.read_bytes()
    lowered(fused, "onnx", tmp_path)
    assert fused.read_bytes() == before


def test_lowering_is_repeatable(fused, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lowered(fused, "primitive", tmp_path / name)
    assert (tmp_path / "one/primitive.onnx").read_bytes() == (tmp_path / "two/primitive.onnx").read_bytes()


# What cannot be lowered


def test_other_operators_that_mean_the_same_in_both_opsets_come_along(fused):
    model = lower.lower(files.read(fused), "onnx")
    assert model.graph.opset_imports[""] == 23
    assert any(node.op_type == "Tanh" for node in model.graph)


def test_an_operator_that_means_something_else_in_the_dialects_opset(fused):
    model = files.read(fused)
    hidden = model.graph.outputs[0]
    model.graph.append(ir.node("AveragePool", [hidden]))
    with pytest.raises(UnsupportedModel, match=r"opset 17; opset 23 defines AveragePool differently") as caught:
        lower.lower(model, "onnx")
    assert caught.value.operators == ("AveragePool",)


def test_a_reduction_over_given_axes_is_brought_along(fused):
    """Its axes were an attribute, and became an input in opset 18."""
    model = files.read(fused)
    node = ir.node("ReduceMean", [model.graph.outputs[0]], {"axes": [1]})
    node.outputs[0].name = "mean"
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    lowered = lower.lower(model, "onnx")
    mean = next(lowered_node for lowered_node in lowered.graph if lowered_node.outputs[0].name == "mean")
    assert "axes" not in mean.attributes
    assert mean.inputs[1] is not None


def test_a_fused_operator_that_a_dialect_does_not_have(fused):
    model = files.read(fused)
    model.graph.append(ir.node("Unheard", [model.graph.outputs[0]], domain=functions.DOMAIN))
    with pytest.raises(UnsupportedModel, match=r"'primitive' has no isorun\.fused\.Unheard") as caught:
        lower.lower(model, "primitive")
    assert caught.value.operators == ("Unheard",)


# The fused form itself, and variants of a dialect


def test_the_fused_form_may_be_asked_for_as_a_dialect(fused):
    model = lower.lower(files.read(fused), functions.FUSED)
    assert any(map(functions.is_fused, model.graph))
    assert model.graph.opset_imports[""] == functions.opset(functions.BODIES)
    feeds = tiny.feeds(3, 9, kind="holes")
    for expected, output in zip(exports.run(fused, feeds), exports.run(model, feeds), strict=True):
        np.testing.assert_array_equal(expected, output)


def test_overrides_come_before_the_dialects_functions(fused):
    """A variant replaces one function, and inherits the others."""
    text = """opset_import: ["" : 17, "com.microsoft" : 1]
SkipLayerNormalization <epsilon> (input, skip, gamma, beta, bias) => (output)
{
  output = com.microsoft.SkipLayerNormalization <epsilon: float = @epsilon> (input, skip, gamma, beta, bias)
}
"""
    feeds = tiny.feeds(3, 9, kind="holes")
    plain = lower.lower(files.read(fused), "com.microsoft")
    variant = lower.lower(files.read(fused), "com.microsoft", [text])
    counts = [Counter(node.op_type for node in model.graph) for model in (plain, variant)]
    assert counts[1]["SkipLayerNormalization"] == counts[0]["LayerNormalization"] == 4
    assert counts[1]["Attention"] == counts[0]["Attention"] == 2
    for expected, output in zip(exports.run(plain, feeds), exports.run(variant, feeds), strict=True):
        np.testing.assert_allclose(output, expected, atol=TOLERANCE)


def test_a_variant_may_have_operators_of_its_own(fused):
    model = files.read(fused)
    hidden = model.graph.outputs[0]
    doubled = ir.node("Doubled", [hidden], domain=functions.DOMAIN)
    doubled.outputs[0].name = "doubled"
    model.graph.append(doubled)
    model.graph.outputs.append(doubled.outputs[0])
    text = 'opset_import: ["" : 17]\nDoubled (x) => (y) { y = Add (x, x) }\n'
    lowered = lower.lower(model, "primitive", [text])
    last = next(node for node in lowered.graph if node.outputs[0] in lowered.graph.outputs[-1:])
    assert (last.op_type, last.domain) == ("Add", "")
