"""Checkpoints of every architecture answer as PyTorch does, and are the graph that their exports are fused to."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import safetensors.numpy

import exports
import tiny
from isorun import Session
from isorun.graph import pipeline
from isorun.graph.io import files
from isorun.graph.ops import functions
from isorun.models import checkpoint

NAMES = ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-r")
HEADS = ("sequence", "token", "qa")
EVERY = [(name, head) for name in NAMES for head in ("", *HEADS)]


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_matches_pytorch(name: str, tmp_path: Path) -> None:
    folder, path = exports.checkpoint(f"{name}-sequence", tmp_path), tmp_path / "built.onnx"
    assert checkpoint.build(folder, path) == []
    with np.load(folder / "expected.npz") as stored:
        feeds = {key: stored[key] for key in stored if key not in ("logits", "last_hidden_state")}
        expected = {key: stored[key] for key in ("logits", "last_hidden_state")}
    with Session(path, "ort-cpu", padding="keep") as session:
        assert [spec.name for spec in session.get_inputs()] == list(feeds)
        outputs = session.run(list(expected), feeds)
    for (label, array), output in zip(expected.items(), outputs, strict=True):
        np.testing.assert_allclose(output, array, rtol=0, atol=1e-5, err_msg=label)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "head"), EVERY)
def test_a_checkpoint_and_its_export_are_one_graph(name: str, head: str, tmp_path: Path) -> None:
    """Built from its weights, or exported by PyTorch and fused: the same operators on the same numbers.

    What a checkpoint's graph gives beside what the export gives (the hidden states under a head) is left out.
    """
    whole = "-".join(filter(None, (name, head)))
    assert checkpoint.build(exports.checkpoint(whole, tmp_path), tmp_path / "built.onnx") == []
    entries = exports.manifest().items()
    labels = [
        label
        for label, entry in entries
        if (entry["archive"], entry["head"] or "", entry["attention"]) == (name, head, "eager")
    ]
    assert len(labels) == (1 if head else 5)
    for label in labels:
        export = exports.fused(label)
        assert exports.fusion(label)[1].complete
        built = pipeline.read(tmp_path / "built.onnx", [value.name or "" for value in export.graph.outputs]).model
        for model in (built, export):
            for node in model.graph:
                if "epsilon" in node.attributes:  # exporters round it to float32 and back
                    exact = float(np.float32(node.attributes["epsilon"].as_float()))
                    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", exact)
        assert exports.digest(built) == exports.digest(export), label
        assert exports.agree(label, exports.run(built, exports.given(label))), label


def test_token_types_are_an_input_where_there_are_several(tmp_path: Path) -> None:
    """Of RoBERTa, whose authors have one."""
    hidden = []
    for types in (1, 2):
        folder = exports.checkpoint("roberta", tmp_path / str(types))
        weights = safetensors.numpy.load_file(folder / "model.safetensors")
        (name,) = (name for name in weights if name.endswith("token_type_embeddings.weight"))
        row = np.linspace(-1, 1, weights[name].shape[1], dtype=np.float32)
        weights[name] = np.stack([-row, row])[-types:]
        safetensors.numpy.save_file(weights, folder / "model.safetensors")
        tiny.changed(folder, type_vocab_size=types)
        feeds = exports.feeds(["input_ids", "attention_mask"])
        with Session(folder, "ort-cpu", padding="keep") as session:
            names = [spec.name for spec in session.get_inputs()]
            assert ("token_type_ids" in names) == (types == 2)
            if types == 2:
                feeds["token_type_ids"] = np.ones_like(feeds["input_ids"])
            hidden.append(session.run(["last_hidden_state"], feeds)[0])
    np.testing.assert_allclose(hidden[0], hidden[1], atol=1e-5)


@pytest.mark.parametrize("rows", [32, 48])
def test_mpnet_has_32_buckets_whatever_the_size_of_the_table(tmp_path: Path, rows: int) -> None:
    folder = exports.checkpoint("mpnet", tmp_path)
    feeds = exports.feeds(["input_ids", "attention_mask"], length=40)
    with Session(folder, "ort-cpu", padding="keep") as session:
        (expected,) = session.run(["last_hidden_state"], feeds)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("relative_attention_bias.weight"))
    more = np.full((rows - 32, weights[name].shape[1]), 9, np.float32)
    weights[name] = np.concatenate([weights[name], more])
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    tiny.changed(folder, relative_attention_num_buckets=rows)
    with Session(folder, "ort-cpu", padding="keep") as session:
        np.testing.assert_allclose(session.run(["last_hidden_state"], feeds)[0], expected, atol=1e-6)


def test_albert_stores_its_layer_once(tmp_path: Path) -> None:
    checkpoint.build(exports.checkpoint("albert", tmp_path), tmp_path / "built.onnx")
    attentions = [n for n in files.read(tmp_path / "built.onnx").graph if n.op_type == functions.ATTENTION]
    assert len(attentions) == 3
    assert len({node.inputs[2] for node in attentions}) == 1


@pytest.mark.parametrize("padding", [-1, 120, "one"])
def test_rejects_an_invalid_padding_id(padding: object, tmp_path: Path) -> None:
    folder = exports.checkpoint("roberta", tmp_path)
    tiny.changed(folder, pad_token_id=padding)
    with pytest.raises(checkpoint.InvalidModel, match="pad_token_id"):
        checkpoint.build(folder, tmp_path / "built.onnx")
