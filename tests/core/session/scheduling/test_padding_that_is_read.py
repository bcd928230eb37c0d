"""Classifiers that read a token which may be padding: without a key in sight it attends to its whole row, whose length
a batch must not change."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

import exports
import isorun

LABELS = ("modernbert-sequence-dynamo18-eager", "deberta-v3-sequence-dynamo18-eager", "qwen3-dynamo18-eager")


def classifier(label: str) -> onnx.ModelProto:
    """An export whose only output depends on the first token."""
    proto = exports.proto(label)
    if exports.entry(label)["head"] is None:
        first = onnx.helper.make_node("Gather", [proto.graph.output[0].name, "zero"], ["first"], axis=1)
        proto.graph.node.append(first)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "zero"))
        del proto.graph.output[:]
        proto.graph.output.append(onnx.helper.make_tensor_value_info("first", onnx.TensorProto.FLOAT, None))
    return proto


@pytest.mark.sampled(3)
@pytest.mark.parametrize("padding", ["keep", "auto"])
@pytest.mark.parametrize("label", LABELS)
def test_rows_of_different_lengths(label: str, padding: str, tmp_path: Path) -> None:
    onnx.save(classifier(label), tmp_path / "model.onnx")
    batches = [exports.given(label, length) for length in (12, 40, 7)]
    rows = [{name: array[row : row + 1] for name, array in batch.items()} for batch in batches for row in range(5)]
    expected = [row for batch in batches for row in exports.run(classifier(label), batch)[0]]
    with isorun.Session(tmp_path / "model.onnx", "ort-cpu", padding=padding) as session:
        assert session.model_info.keeps_padding == ""
        for (result,), wanted in zip(session.map(rows, max_tokens=1000), expected, strict=True):
            assert_allclose(result[0], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("label", LABELS[:2])
def test_rows_run_alone(label: str, tmp_path: Path) -> None:
    onnx.save(classifier(label), tmp_path / "model.onnx")
    feeds = exports.given(label)
    (expected,) = exports.run(classifier(label), feeds)
    with isorun.Session(tmp_path / "model.onnx", "openvino", padding="keep", deterministic=True) as session:
        (result,) = session.run(None, feeds)
    assert_allclose(result, expected, atol=1e-4, rtol=1e-4)
