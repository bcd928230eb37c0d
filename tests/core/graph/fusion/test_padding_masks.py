"""Masks of padding: an input that is 1 there, a comparison of ids, and a number of tokens for each row."""

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import exports
import isorun
from isorun.errors import InvalidFeeds
from isorun.models.tokenizer import feeds_of
from isorun.parity.samples import MASKS
from isorun.types import ModelInfo, TensorSpec

LABELS = ["torch-dynamo18-batch-first-picked", "torch-dynamo18-sequence-first-cut"]
PADDING, LENGTHS = "src_key_padding_mask", "lengths"
KINDS = [PADDING, "int", LENGTHS, "ids"]
QUICK = {0, 1, 2, 4, 6, 8}  # both backends once, both exports once, every kind
PAD = 3
Feeds = dict[str, np.ndarray]


def encoder(label: str, kind: str, *, mean: bool = False) -> onnx.ModelProto:
    """An export of PyTorch's encoder with another mask than ``attention_mask == 0``."""
    proto = exports.proto(label)
    graph = proto.graph
    (comparison,) = (node for node in graph.node if "attention_mask" in node.input and node.op_type == "Equal")
    position, masked = list(graph.node).index(comparison), comparison.output[0]
    graph.node.remove(comparison)
    (old,) = (value for value in graph.input if value.name == "attention_mask")
    graph.input.remove(old)
    batch = old.type.tensor_type.shape.dim[0].dim_param
    nodes = []
    numbers = {"one": 1, "zero": 0, "pad": PAD}
    graph.initializer.extend(helper.make_tensor(f"t.{key}", TensorProto.INT64, [], [n]) for key, n in numbers.items())
    graph.initializer.append(helper.make_tensor("t.ones", TensorProto.INT64, [1], [1]))
    if kind == PADDING:
        graph.input.append(helper.make_tensor_value_info(PADDING, TensorProto.BOOL, [batch, "sequence"]))
        nodes = [helper.make_node("Identity", [PADDING], [masked])]
    elif kind == "int":
        graph.input.append(helper.make_tensor_value_info(PADDING, TensorProto.INT64, [batch, "sequence"]))
        nodes = [helper.make_node("Cast", [PADDING], [masked], to=TensorProto.BOOL)]
    elif kind == LENGTHS:
        graph.input.append(helper.make_tensor_value_info(LENGTHS, TensorProto.INT64, [batch]))
        nodes = [
            helper.make_node("Shape", ["input_ids"], ["t.shape"], start=1, end=2),
            helper.make_node("Squeeze", ["t.shape"], ["t.length"]),
            helper.make_node("Range", ["t.zero", "t.length", "t.one"], ["t.at"]),
            helper.make_node("Unsqueeze", [LENGTHS, "t.ones"], ["t.column"]),
            helper.make_node("GreaterOrEqual", ["t.at", "t.column"], [masked]),
        ]
    else:
        nodes = [helper.make_node("Equal", ["input_ids", "t.pad"], [masked])]
    for offset, node in enumerate(nodes):
        graph.node.insert(position + offset, node)
    if mean:
        graph.node.extend(
            [
                helper.make_node("Not", [masked], ["t.real"]),
                helper.make_node("Cast", ["t.real"], ["t.factor"], to=TensorProto.FLOAT),
                helper.make_node("Constant", [], ["t.last"], value_ints=[-1]),
                helper.make_node("Unsqueeze", ["t.factor", "t.last"], ["t.factors"]),
                helper.make_node("Mul", [graph.output[0].name, "t.factors"], ["t.kept"]),
                helper.make_node("ReduceSum", ["t.kept", "t.ones"], ["sum"], keepdims=0),
            ]
        )
        graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [batch, 32]))
    onnx.checker.check_model(proto)
    return proto


def fed(kind: str, mask: np.ndarray, rng: np.random.Generator) -> tuple[Feeds, np.ndarray]:
    """Feeds for a mask, and the mask that they express."""
    ids = rng.integers(PAD + 1, 90, mask.shape)
    feeds = {"input_ids": ids, "token_type_ids": rng.integers(0, 2, mask.shape)}
    if kind == LENGTHS:
        lengths = mask.sum(1)
        return {**feeds, LENGTHS: lengths}, (np.arange(mask.shape[1]) < lengths[:, None]).astype(np.int64)
    if kind == "ids":
        return {**feeds, "input_ids": np.where(mask, ids, PAD)}, mask
    return {**feeds, PADDING: (mask == 0).astype(bool if kind == PADDING else np.int64)}, mask


CASES = [
    pytest.param(label, kind, backend, marks=() if order in QUICK else pytest.mark.long)
    for order, (label, kind, backend) in enumerate(product(LABELS, KINDS, ["ort-cpu", "openvino"]))
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("label", "kind", "backend"), CASES)
def test_any_mask_of_padding_is_fused(label: str, kind: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(encoder(label, kind, mean=True), path)
    untouched = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    for padding in ("keep", "auto", "remove"):
        with isorun.Session(path, backend, padding=padding) as session:
            assert session.model_info.fused["SelfAttention"] == exports.entry(label)["layers"]
            for make in MASKS.values():
                feeds, mask = fed(kind, make(5, 24, rng), rng)
                real = mask != 0
                rows = real.any(axis=1)
                for result, expected in zip(session.run(None, feeds), untouched.run(None, feeds), strict=True):
                    kept = real if result.shape[:2] == mask.shape else rows
                    assert np.isfinite(result).all()
                    np.testing.assert_allclose(result[kept], expected[kept], rtol=1e-5, atol=5e-5)
                    if padding != "keep" and kind in (PADDING, "int") and result.shape[:2] == mask.shape:
                        assert not result[~real & rows[:, None]].any()


def test_requests_of_different_lengths_share_a_batch(tmp_path: Path) -> None:
    """Shorter ones are padded with 1 in such a mask."""
    path = tmp_path / "model.onnx"
    onnx.save(encoder(LABELS[0], PADDING), path)
    rng = np.random.default_rng(0)
    requests = [fed(PADDING, np.ones((1, length), np.int64), rng)[0] for length in (3, 20, 9, 14)]
    with isorun.Session(path, "ort-cpu") as session:
        futures = [session.submit(None, feeds) for feeds in requests]
        for feeds, future in zip(requests, futures, strict=True):
            for result, expected in zip(future.result(), session.run(None, feeds), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_text_is_fed_to_such_a_mask() -> None:
    info = ModelInfo(
        (TensorSpec("ids", "tensor(int64)", (1, 2)), TensorSpec(PADDING, "tensor(bool)", (1, 2))),
        (),
        17,
        mask=PADDING,
        marks_padding=True,
    )
    feeds = feeds_of({"ids": np.array([[7, 0]]), "attention_mask": np.array([[1, 0]])}, info)
    assert feeds[PADDING].tolist() == [[False, True]]
    assert info.attended(feeds).tolist() == [[True, False]]
    on_device = object()
    assert info.attended({PADDING: on_device}) is on_device
    assert info.attended({}) is None


def test_other_values_than_0_and_1_run_the_model_as_given(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(encoder(LABELS[0], "int"), path)
    feeds, _ = fed("int", np.ones((2, 8), np.int64), np.random.default_rng(0))
    feeds[PADDING][0, 5:] = 2
    with isorun.Session(path, "ort-cpu") as session:
        results = session.run(None, feeds)
        assert "mask" in session.provenance.details
    for result, expected in zip(results, onnxruntime.InferenceSession(path).run(None, feeds), strict=True):
        np.testing.assert_allclose(result[1], expected[1], rtol=1e-5, atol=1e-5)


def test_positions_of_two_dimensions_are_added_to_tokens_alone(tmp_path: Path) -> None:
    """As in Marian: a row of a table for each position, added after the embedding and not normalized."""
    proto = exports.proto(LABELS[0])
    nodes = {node.output[0]: node for node in proto.graph.node}
    plain, added = nodes["layer_norm"], nodes["add_21"]
    added.input[:] = ["add_13", "embedding"]
    plain.CopyFrom(helper.make_node("Identity", ["add_21"], ["layer_norm"]))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    untouched = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    (rows,) = (table.dims[0] for table in proto.graph.initializer if table.name == "position_embedding.weight")
    with isorun.Session(path, "ort-cpu", padding="remove") as session:
        assert session.model_info.fused["SelfAttention"] == 3
        for make in MASKS.values():
            mask = make(5, 24, rng)
            feeds = {"input_ids": rng.integers(5, 90, mask.shape), "attention_mask": mask}
            feeds["token_type_ids"] = mask % 2
            for result, expected in zip(session.run(None, feeds), untouched.run(None, feeds), strict=True):
                kept = mask != 0 if result.ndim == 3 else mask.any(axis=1)
                np.testing.assert_allclose(result[kept], expected[kept], rtol=1e-5, atol=5e-5)
        with pytest.raises(InvalidFeeds, match=f"at most {rows}"):
            session.run(None, {name: np.ones((1, rows + 1), np.int64) for name in feeds})
