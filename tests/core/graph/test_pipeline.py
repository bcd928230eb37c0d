"""Every export in tests/fixtures is fused completely, with unchanged outputs on every backend and dialect."""

import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph import pipeline
from isorun.graph.ops import functions
from isorun.graph.pipeline import fuse

LABELS = sorted(exports.manifest())
LAYERS = 3
TARGETS = exports.targets()


ARCHITECTURES = [
    pytest.param(name, marks=() if name in ("bert", "deberta-v3", "modernbert") else pytest.mark.long)
    for name in sorted({entry["architecture"] for entry in exports.manifest().values()})
]


def interface(model: ir.Model) -> list[tuple[object, ...]]:
    """The inputs and outputs of a model."""
    return [(value.name, value.dtype, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("label", LABELS)
def test_fuses_an_export_completely(label: str) -> None:
    """Its inputs, outputs and results stay as they are."""
    model, report = exports.fused(label), exports.fusion(label)[1]
    assert report.complete, str(report)
    assert not report.refusals
    assert report.fused == report.found
    assert report.fused["EmbedLayerNormalization"] == 1
    layers = exports.manifest()[label]["layers"]
    assert report.fused["SelfAttention"] == layers
    assert report.fused["SkipLayerNormalization"] == 2 * layers
    assert report.fused["BiasGelu"] >= layers  # ELECTRA's sequence classifier has one in its head
    left = {node.op_type for node in model.graph if not functions.is_fused(node)}
    assert not left & {"Softmax", "Erf", "Attention", "LayerNormalization", "ReduceMean", "Sqrt", "IsNaN"}
    assert interface(model) == interface(exports.model(label))
    assert exports.agree(label, exports.run(model, exports.given(label)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("backend", "dialect"), TARGETS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_backend_agrees_with_the_export(architecture: str, backend: str, dialect: str, tmp_path: Path) -> None:
    """All five kinds of mask, in every dialect. Exports that fuse to the same graph are run once."""
    answers: dict[str, list[np.ndarray]] = {}
    for label in LABELS:
        if exports.manifest()[label]["architecture"] != architecture:
            continue
        model = exports.fused(label)
        name = f"{exports.digest(model)}-{exports.manifest()[label].get('rows')}"
        if name not in answers:
            answers[name] = exports.run_lowered(
                backend, dialect, model, exports.given(label), tmp_path / f"{name}.onnx"
            )
        assert exports.agree(label, answers[name]), label


@pytest.mark.sampled(5)
@pytest.mark.parametrize("architecture", sorted({entry["architecture"] for entry in exports.manifest().values()}))
def test_exports_of_one_model_fuse_to_one_graph(architecture: str) -> None:
    """Apart from names. PyTorch's guard for fully masked rows computes something else."""
    entries = exports.manifest()
    groups: dict[object, set[str]] = {}
    for label, entry in entries.items():
        if (entry["architecture"], entry["exporter"], entry["head"]) == (architecture, "torchscript", None):
            groups.setdefault(entry["attention"], set()).add(exports.digest(exports.fused(label)))
    assert [len(names) for names in groups.values()] == [1] * len(groups)


@pytest.mark.parametrize("kind", ["packed", "torch"])
def test_every_layout_of_a_joint_qkv_layer_fuses_to_one_graph(kind: str) -> None:
    """Weights that are grouped by head or interleaved are reordered; and PyTorch's own layers."""
    labels = [label for label, entry in exports.manifest().items() if entry["architecture"] == kind]
    assert len(labels) >= 3
    assert len({exports.digest(exports.fused(label)) for label in labels}) == 1


ALBERTS = [label for label in LABELS if label.startswith("albert-") and "-tf2onnx" not in label]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("label", ALBERTS)
def test_albert_shares_its_weights(label: str) -> None:
    """However many copies an exporter has written."""
    model = exports.fused(label)
    matrices = {node.inputs[1] for node in model.graph if node.op_type == "MatMul"}
    outside_layers = {None: 2, "sequence": 3, "token": 2, "qa": 2}  # after the embeddings, the pooler, the head
    attentions = [node for node in model.graph if node.op_type == functions.ATTENTION]
    narrow = len(attentions) < LAYERS  # the last layer splits a weight into those of queries, and of keys and values
    assert narrow == (exports.manifest()[label]["head"] == "sequence")
    assert len(matrices) == 3 + outside_layers[exports.manifest()[label]["head"]] + 2 * narrow
    assert len({node.inputs[2] for node in attentions}) == len({node.inputs[3] for node in attentions}) == 1


def test_a_pass_is_one_entry_in_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, fusing and transforming all run what :data:`pipeline.PASSES` lists for their stage."""
    ran: list[str] = []
    added = [pipeline.Pass("", stage, lambda *_, stage=stage: ran.append(stage.name)) for stage in pipeline.Stage]
    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, *added))
    model = exports.model("bert-torchscript17-eager")
    fuse(model)
    pipeline.transform(model, pipeline.Target(dialect="onnx"))
    assert ran == ["FUSION", "FUSED", "TARGET"]
    assert not any(map(functions.is_fused, model.graph))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "label", ["bert-torchscript17-sdpa", "mpnet-dynamo18-eager", "roberta-dynamo23-eager", "bert-tf2onnx17"]
)
def test_lengths_and_batches_are_free(label: str) -> None:
    model = ir.serde.serialize_model(exports.fused(label))
    for batch, length in itertools.product((1, 3), (1, 7, 33)):
        feeds = exports.given(label, length, batch)
        assert exports.difference(exports.run(exports.content(label), feeds), exports.run(model, feeds)) < 1e-5


def test_does_not_read_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q, K and V are concatenated when the file is written, not before."""
    model = exports.model("bert-torchscript17-eager")
    monkeypatch.setattr("isorun.graph.matching.subgraph._LARGE", 64)
    fuse(model)
    weight = next(node for node in model.graph if node.op_type == "SelfAttention").inputs[2]
    assert isinstance(weight.const_value, ir.LazyTensor)
    feeds = exports.given("bert-torchscript17-eager")
    answer = exports.run(model, feeds)
    assert exports.difference(exports.answers("bert-torchscript17-eager"), answer) < exports.TOLERANCE


def test_detects_a_missing_guard() -> None:
    """Without its guard, an attention differs only in the fully masked row."""
    label = "bert-torchscript17-sdpa"
    model = exports.fused(label)
    guarded = [node for node in model.graph if "guarded" in node.attributes]
    assert len(guarded) == LAYERS
    for node in guarded:
        del node.attributes["guarded"]
    functions.carry(model)
    feeds = exports.given(label)
    answers, got = exports.answers(label), exports.run(model, feeds)
    assert exports.difference(answers, got) > 100 * exports.TOLERANCE
    assert exports.difference([output[:4] for output in answers], [output[:4] for output in got]) < exports.TOLERANCE
