"""Multiple choice: inputs (batch, choices, sequence) that the graph flattens before it reads them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import exports
import isorun
from isorun.parity.samples import MASKS, random_feeds

LABELS = ["bert-torchscript17-sdpa", "bert-dynamo18-eager"]
CHOICES = 3


def multiple_choice(label: str, *shape: int | str, order: str = "rows") -> onnx.ModelProto:
    """An export whose inputs are flattened by a Reshape, and with one of its pooled values for each choice."""
    proto = exports.proto(label)
    graph = proto.graph
    names = [value.name for value in graph.input]
    for node in graph.node:
        node.input[:] = [f"flat.{name}" if name in names else name for name in node.input]
    length = ["input_ids", "c.length"]
    nodes = [helper.make_node("Shape", length[:1], length[1:], start=2, end=3)]
    nodes.append(helper.make_node("Concat", ["c.rest", "c.length"], ["c.flat"], axis=0))
    for name in names:
        source = name
        if order == "transposed":
            nodes.append(helper.make_node("Transpose", [name], [f"turned.{name}"], perm=[1, 0, 2]))
            source = f"turned.{name}"
        nodes.append(helper.make_node("Reshape", [source, "c.flat"], [f"flat.{name}"]))
    pooled = graph.output[1]
    nodes_after = [
        helper.make_node("Shape", ["input_ids"], ["c.rows"], start=0, end=2),
        helper.make_node("Gather", [pooled.name, "c.column"], ["c.values"], axis=1),
        helper.make_node("Reshape", ["c.values", "c.rows"], ["by_choice"]),
    ]
    graph.initializer.append(helper.make_tensor("c.rest", TensorProto.INT64, [1], [-1]))
    graph.initializer.append(helper.make_tensor("c.column", TensorProto.INT64, [1], [3]))
    for node in reversed(nodes):
        graph.node.insert(0, node)
    graph.node.extend(nodes_after)
    del graph.input[:]
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names)
    del graph.output[:], graph.value_info[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("by_choice", TensorProto.FLOAT, shape[:2]),
            helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [None, None, None]),
        ]
    )
    onnx.checker.check_model(proto)
    return proto


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("label", "backend"), [*zip(LABELS, ["ort-cpu", "openvino"], strict=True)])
def test_choices_are_fused_and_their_padding_is_removed(label: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(multiple_choice(label, "batch", "choices", "sequence"), path)
    untouched = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    for padding in ("keep", "auto", "remove"):
        with isorun.Session(path, backend, padding=padding) as session:
            info = session.model_info
            assert info.fused["SelfAttention"] == exports.entry(label)["layers"]
            assert (info.mask, info.token_outputs, info.keeps_padding) == (
                "attention_mask",
                ("last_hidden_state",),
                "",
            )
            for make in MASKS.values():
                mask = make(4 * CHOICES, 24, rng)
                feeds = {
                    "input_ids": rng.integers(2, 50, mask.shape),
                    "attention_mask": mask,
                    "token_type_ids": rng.integers(0, 2, mask.shape),
                }
                feeds = {name: array.reshape(4, CHOICES, 24) for name, array in feeds.items()}
                (pooled, tokens), (expected, of_tokens) = session.run(None, feeds), untouched.run(None, feeds)
                np.testing.assert_allclose(pooled, expected, rtol=1e-5, atol=5e-5)
                np.testing.assert_allclose(tokens[mask != 0], of_tokens[mask != 0], rtol=1e-5, atol=5e-5)
                assert padding == "keep" or not tokens[(mask == 0) & mask.any(axis=1, keepdims=True)].any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [("batch", 4, "sequence"), (2, 3, 16), (1, 4, "sequence")])
def test_the_number_of_choices_may_be_fixed(shape: tuple[int | str, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(multiple_choice(LABELS[0], *shape), path)
    untouched = onnxruntime.InferenceSession(path)
    batch, choices, length = (size if isinstance(size, int) else 5 for size in shape)
    rng = np.random.default_rng(0)
    with isorun.Session(path, "ort-cpu", padding="remove") as session:
        for make in MASKS.values():
            mask = make(batch * choices, length, rng).reshape(batch, choices, length)
            feeds = {"input_ids": rng.integers(2, 50, mask.shape), "attention_mask": mask, "token_type_ids": mask % 2}
            np.testing.assert_allclose(
                session.run(["by_choice"], feeds)[0], untouched.run(["by_choice"], feeds)[0], rtol=1e-5, atol=5e-5
            )


def test_merging_other_dimensions_is_no_multiple_choice(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(multiple_choice(LABELS[0], "batch", "choices", "sequence", order="transposed"), path)
    mask = MASKS["holes"](6, 9, np.random.default_rng(0)).reshape(2, 3, 9)
    feeds = {"input_ids": mask + 3, "attention_mask": mask, "token_type_ids": mask % 2}
    expected = onnxruntime.InferenceSession(path).run(["by_choice"], feeds)[0]
    with isorun.Session(path, "ort-cpu") as session:
        assert session.model_info.mask is None
        np.testing.assert_allclose(session.run(["by_choice"], feeds)[0], expected, rtol=1e-5, atol=5e-5)


def test_feeds_of_choices_are_generated_and_other_values_run_the_model_as_given(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(multiple_choice(LABELS[0], "batch", "choices", "sequence"), path)
    rng = np.random.default_rng(0)
    with isorun.Session(path, "ort-cpu") as session:
        session.warmup()
        mask = MASKS["right"](4, 9, rng)
        feeds = random_feeds(session.model_info, rng, batch=4, sequence=9, mask=mask)
        assert {array.shape for array in feeds.values()} == {(4, 2, 9)}
        np.testing.assert_array_equal(feeds["attention_mask"][:, 0], mask)
        expected = session.run(["by_choice"], feeds)[0]
        with session.map(
            [
                {name: row[None] for name, row in zip(feeds, rows, strict=True)}
                for rows in zip(*feeds.values(), strict=True)
            ],
            output_names=["by_choice"],
        ) as results:
            np.testing.assert_allclose(np.concatenate([result for (result,) in results]), expected, atol=1e-5)
        feeds["attention_mask"][0, 0, 3:] = 2
        result = session.run(["by_choice"], feeds)[0]
        assert "mask" in session.provenance.details
    np.testing.assert_allclose(
        result, onnxruntime.InferenceSession(path).run(["by_choice"], feeds)[0], rtol=1e-5, atol=1e-5
    )
