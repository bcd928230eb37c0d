"""Graphs in fp16 beside the same in fp32: in every dialect, with padding and without, under every kind of mask.

ONNX's reference evaluator computes in the types of the graph; ONNX Runtime's CPU provider shows that a graph's types
are sound, and how far storing in fp16 alone takes the results off.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import exports
import tiny
from isorun.errors import UnsupportedModel
from isorun.graph import inspect
from isorun.graph.io import files
from isorun.graph.ops import functions, lower
from isorun.graph.transforms import padding_removal
from isorun.graph.transforms.precision.half import FASTER, KEPT, LARGEST, HalfReport, convert

OFF = 0.03
"""The most that fp16 takes an element of a tiny BERT off, whose outputs are about 1: twice the worst seen."""

HEAD = '<ir_version: 10, opset_import: ["" : 17, "other" : 1]>'


def converted(
    path: Path, dialect: str | None = "primitive", *, packed: bool = False, kind: ir.DataType = ir.DataType.FLOAT16
) -> onnx.ModelProto:
    model = files.read(path)
    if packed:
        padding_removal.remove(model)
    assert convert(model, kind).kept == ()
    return ir.serde.serialize_model(model if dialect is None else lower.lower(model, dialect))


def by_reference(proto: onnx.ModelProto, feeds: exports.Feeds) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(proto).run(None, dict(feeds))


def by_fp32(path: Path, kind: str, *, packed: bool) -> tuple[exports.Feeds, list[np.ndarray]]:
    """Feeds with a kind of mask, and what the untouched model answers; where it is packed, zeros at padding."""
    feeds = tiny.feeds(3, 7, kind=kind)
    expected = exports.run(onnx.load(path), feeds)
    if packed:
        expected[0][feeds["attention_mask"] == 0] = 0
    return feeds, expected


def small(text: str, **weights: np.ndarray) -> tuple[ir.Model, HalfReport]:
    """A graph of ``x``, fp32, in ONNX's text form, converted."""
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,4] x) => (float[N,?] y) {{ {text} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    model = ir.serde.deserialize_model(proto)
    report = convert(model)
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
    return model, report


def types(model: ir.Model, operator: str) -> set[str]:
    """The types that nodes of an operator give."""
    return {str(node.outputs[0].dtype) for node in model.graph if node.op_type == operator}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("dialect", "precision"),
    [
        *((dialect, ir.DataType.FLOAT16) for dialect in functions.dialects()),
        *((dialect, ir.DataType.BFLOAT16) for dialect in ("primitive", "onnx")),
    ],
)
def test_it_is_the_fp32_model_but_for_rounding(bert: Path, dialect: str, precision: ir.DataType, packed: bool):
    proto = converted(bert, dialect, packed=packed, kind=precision)
    runs = [exports.run] if dialect.startswith("com.microsoft") else [exports.run, by_reference]
    least, most = 1e-5, OFF
    if precision == ir.DataType.BFLOAT16:  # three digits fewer; ONNX Runtime's CPU provider does not compute in it
        runs, least, most = [by_reference], 1e-3, 8 * OFF
    for kind in tiny.MASKS:
        feeds, expected = by_fp32(bert, kind, packed=packed)
        for run in runs:
            got = run(proto, feeds)
            assert [array.dtype for array in got] == [np.float32] * 2
            off = exports.difference(expected, got)
            assert least < off < most, f"mask {kind}: {run.__name__} is off by {off}"


def test_bf16_has_the_range_of_fp32():
    large = np.array(1e30, np.float32)
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,4] x) => (float[N,4] y) {{ h = Relu (x) y = Mul (h, c) }}")
    proto.graph.initializer.append(numpy_helper.from_array(large, "c"))
    model = ir.serde.deserialize_model(proto)
    assert convert(model.clone(), ir.DataType.BFLOAT16).kept == ()
    assert [node.operator for node in convert(model).kept] == ["Mul"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dialect", [None, "primitive", "onnx"])
@pytest.mark.parametrize("precision", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_the_graph_is_sound(bert: Path, dialect: str | None, packed: bool, precision: ir.DataType):
    onnx.checker.check_model(converted(bert, dialect, packed=packed, kind=precision), full_check=True)


def test_weights_and_activations_are_fp16_and_the_rest_stays(bert: Path):
    model = files.read(bert)
    before = inspect.inspect(model).info
    convert(model)
    description = inspect.inspect(model)
    assert (description.info.inputs, description.info.outputs) == (before.inputs, before.outputs)
    assert {(layer.precision, layer.activations) for layer in description.layers if layer.kind == "dense"} == {
        ("fp16", "fp16")
    }
    assert set(description.parameters) == {"fp16", "int64"}
    assert functions.is_half(model)


def test_what_is_read_back_is_what_was_written(bert: Path, tmp_path: Path):
    model = files.read(bert)
    convert(model)
    files.write(model, tmp_path / "half.onnx")
    feeds = tiny.feeds(kind="holes")
    for dialect in functions.dialects():
        proto = ir.serde.serialize_model(lower.lower(files.read(tmp_path / "half.onnx"), dialect))
        assert exports.difference(exports.run(onnx.load(bert), feeds), exports.run(proto, feeds)) < OFF


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "label",
    [
        "bert-tf2onnx17",
        "albert-sequence-torchscript17-sdpa",
        "electra-token-dynamo18-eager",
        "mpnet-dynamo23-eager",
        "roberta-qa-torchscript17-sdpa",
        "distilbert-dynamo18-sdpa",
        "clip-torchscript17-eager",  # whose masks differ between queries, like those of DeBERTa
        "deberta-v2-dynamo18-eager",
    ],
)
@pytest.mark.parametrize("dialect", functions.dialects())
def test_any_exporters_encoder(label: str, dialect: str):
    model = exports.fused(label)
    convert(model)
    got = exports.run(lower.lower(model, dialect), exports.given(label))
    assert exports.difference(exports.answers(label), got) < OFF


def changed(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> ir.Model:
    """A model with other weights in one place."""
    proto = onnx.load(path)
    (tensor,) = (initializer for initializer in proto.graph.initializer if initializer.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)).astype(np.float32), name))
    return ir.serde.deserialize_model(proto)


def test_a_sum_that_leaves_fp16_does_no_harm_in_a_normalization():
    text = """<ir_version: 10, opset_import: ["" : 17, "isorun.fused" : 1]> g (float[N,4] x) => (float[N,4] y)
        <float[4] one = {1, 1, 1, 1}, float[4] nothing = {0, 0, 0, 0}>
        { y = isorun.fused.SkipLayerNormalization <epsilon = 1e-12> (x, x, one, nothing, nothing) }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    functions.carry(model)
    convert(model)
    x = np.array([[40000, 40032, 40064, 40096]], np.float32)  # twice that is beyond fp16
    (got,) = by_reference(ir.serde.serialize_model(lower.lower(model, "primitive")), {"x": x})
    np.testing.assert_allclose(got, (x - x.mean()) / x.std(), rtol=1e-3)


def test_large_scores_do_no_harm_in_a_softmax(bert: Path):
    """Queries a thousand times as large: before they are divided by the root, their products leave fp16."""
    model = changed(
        bert, "encoder.layer.0.attention.self.qkv.weight", lambda weight: weight * np.repeat([4000, 1, 1], tiny.WIDTH)
    )
    convert(model)
    for array in by_reference(ir.serde.serialize_model(lower.lower(model, "primitive")), tiny.feeds(kind="empty-row")):
        assert np.isfinite(array).all()


def test_weights_that_fp16_cannot_hold_stay_in_fp32_with_the_reason(bert: Path):
    name = "encoder.layer.1.output.dense.weight"
    model = changed(bert, name, lambda weight: weight * 1e6)
    feeds = tiny.feeds()
    expected = exports.run(model.clone(), feeds)
    kept, after = convert(model).kept
    assert (kept.node, kept.operator, after.node) == ("layer.1.output", "MatMul", "layer.1")
    assert name in kept.reason
    assert "fp16 ends at 65504" in kept.reason
    assert after.reason == "its input 'layer.1.output:0' may exceed the range of fp16"
    for dialect in functions.dialects():
        got = exports.run(lower.lower(model.clone(), dialect), feeds)
        assert exports.difference(expected, got) < 0.05


@pytest.mark.parametrize("operator", ["layer.0.attention", "layer.0.attended", "layer.0.activation"])
def test_a_fused_operator_may_stay_in_fp32(bert: Path, operator: str):
    """Any of its weights can be the one: the others of the kind are fp16, by the same function."""
    node = next(candidate for candidate in files.read(bert).graph if candidate.name == operator)
    (bias,) = (
        value.name
        for value in node.inputs
        if value and value.const_value is not None and "bias" in value.name and "LayerNorm" not in value.name
    )
    model = changed(bert, bias, lambda array: np.where(np.arange(array.size) == 0, 1e5, array))
    feeds = tiny.feeds()
    expected = exports.run(model.clone(), feeds)
    kept = [kept_node.node for kept_node in convert(model).kept]
    assert kept[0] == operator
    assert set(kept) <= {operator, "layer.0.attention_output", "layer.0.attended", "layer.0.output", "layer.0"}
    got = by_reference(ir.serde.serialize_model(lower.lower(model, "primitive")), feeds)
    assert all(np.isfinite(array).all() for array in got)
    assert exports.difference(expected, got) < 0.05


def test_what_stays_is_computed_in_fp32():
    model, report = small("z = MatMul (x, w) y = Softmax (z)", w=np.eye(4, dtype=np.float32))
    assert (types(model, "MatMul"), types(model, "Softmax")) == ({"FLOAT16"}, {"FLOAT"})
    assert [(node.operator, node.reason) for node in report.kept] == [("Softmax", KEPT["Softmax"])]


def test_what_follows_fp32_stays_in_fp32_until_something_gains():
    """A mean over real tokens, as sentence models have it: its guard against 0 is 0 in fp16."""
    text = """h = MatMul (x, w) t = Reshape (h, s) n = ReduceL2 (h) c = Clip (n, least) e = Expand (c, two)
        d = Div (t, e) y = MatMul (d, w)"""
    model, report = small(
        text,
        w=np.eye(4, dtype=np.float32),
        s=np.array([-1, 4]),
        least=np.array(1e-12, np.float32),
        two=np.array([1, 1]),
    )
    assert types(model, "Reshape") == types(model, "MatMul") == {"FLOAT16"}
    assert types(model, "Clip") == types(model, "Expand") == types(model, "Div") == {"FLOAT"}
    assert {node.operator for node in report.kept} == {"ReduceL2", "Clip", "Div"}
    got = by_reference(ir.serde.serialize_model(model), {"x": np.zeros((1, 4), np.float32)})[0]
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1e6, "has values up to 1e+06, and fp16 ends at 65504"),
        (1e-9, "would be 0 in fp16"),
        *((value, None) for value in (np.inf, -np.inf, LARGEST[ir.DataType.FLOAT16], 0.0)),
    ],
)
def test_a_number_that_fp16_has_not_keeps_its_node(value: float, reason: str | None):
    model, report = small(
        "z = MatMul (x, w) y = Add (z, c)", w=np.eye(4, dtype=np.float32), c=np.array(value, np.float32)
    )
    assert types(model, "Add") == {"FLOAT16" if reason is None else "FLOAT"}
    assert [node.operator for node in report.kept] == ([] if reason is None else ["Add"])
    assert reason is None or reason in report.kept[0].reason


def test_a_domain_that_is_not_known_stays_and_so_does_what_it_reaches():
    text = "h = MatMul (x, w) o = other.Thing (h) z = MatMul (o, w) y = Relu (h)"
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,4] x) => (float[N,?] y) {{ {text} }}")
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    model = ir.serde.deserialize_model(proto)
    (unknown,) = (node for node in model.graph if node.op_type == "Thing")
    (last,) = (node for node in unknown.outputs[0].consumers())
    last.outputs[0].name = "z"
    model.graph.outputs.append(last.outputs[0])
    reasons = {node.operator: node.reason for node in convert(model).kept}
    assert "domain 'other'" in reasons["Thing"]
    assert "not known" in reasons["MatMul"]
    assert last.inputs[1].dtype == ir.DataType.FLOAT
    assert unknown.inputs[0].dtype == ir.DataType.FLOAT


def test_a_sub_graph_reads_fp32():
    text = """h = MatMul (x, w) b = Cast <to = 9> (n)
        y = If (b) <then_branch = t () => (float[N,4] p) { p = Relu (h) },
                    else_branch = e () => (float[N,4] q) { q = Neg (h) }>"""
    model, report = small(text, w=np.eye(4, dtype=np.float32), n=np.array(1))
    assert [(node.operator, node.reason) for node in report.kept] == [("If", "it contains sub-graphs")]
    x = np.array([[1, -2, 3, -4]], np.float32)
    np.testing.assert_array_equal(by_reference(ir.serde.serialize_model(model), {"x": x})[0], [[1, 0, 3, 0]])


def test_what_is_quantized_is_refused():
    text = "d = DequantizeLinear (w, s) y = MatMul (x, d)"
    with pytest.raises(UnsupportedModel, match=r"already quantized \(DequantizeLinear at 'd'\).*Use precision='fp32'"):
        small(text, w=np.eye(4, dtype=np.int8), s=np.array(1, np.float32))


def test_a_model_of_which_nothing_could_be_converted_is_refused():
    with pytest.raises(UnsupportedModel, match=r"Nothing in the model can be converted to fp16 \(Softmax: "):
        small("y = Softmax (x)")
    with pytest.raises(UnsupportedModel, match=r"converted to fp16 \(it has no product"):
        small("y = Neg (x)")


def test_a_model_in_fp16_stays_as_it_is(bert: Path):
    model = files.read(bert)
    convert(model)
    again = model.clone()
    assert convert(again).converted == 0
    feeds = tiny.feeds()
    assert exports.difference(exports.run(model, feeds), exports.run(again, feeds)) == 0


def test_fp16_inputs_stay_fp16():
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float16[N,4] x) => (float16[N,4] y, float[N,4] z) '
        "{ h = MatMul (x, w) y = Relu (h) f = Cast <to = 1> (h) z = MatMul (f, v) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float16), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "v"))
    model = ir.serde.deserialize_model(proto)
    assert convert(model).converted == 1
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
    y, z = by_reference(ir.serde.serialize_model(model), {"x": np.ones((1, 4), np.float16)})
    assert (y.dtype, z.dtype) == (np.float16, np.float32)


def test_the_lists_name_operators_that_there_are():
    known = {schema.name for schema in onnx.defs.get_all_schemas()} | {"Upsample"}
    assert known >= FASTER | KEPT.keys()
    assert not FASTER & KEPT.keys()
    assert all(KEPT.values())
