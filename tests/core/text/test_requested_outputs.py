"""Which output of an ONNX file is pooled, where the caller says so."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import isorun
from isorun.errors import InvalidArgument, InvalidModel


@pytest.fixture
def model(bert: Path, tokenizer: Path, tmp_path: Path) -> Path:
    """A file with two outputs by token, neither of which has a usual name."""
    proto = onnx.load(bert)
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = ["hidden" if name == "last_hidden_state" else name for name in names]
    (output,) = (value for value in proto.graph.output if value.name == "last_hidden_state")
    output.name = "hidden"
    proto.graph.node.append(helper.make_node("Neg", ["hidden"], ["other"]))
    proto.graph.output.add().CopyFrom(output)
    proto.graph.output[-1].name = "other"
    onnx.save(proto, tmp_path / "model.onnx")
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    return tmp_path / "model.onnx"


def test_an_output_that_is_named_is_pooled(model: Path) -> None:
    options = {"backend": "ort-cpu", "pooling": "mean"}
    with pytest.raises(InvalidModel, match=r"Cannot tell which output .* Pass outputs=\[NAME\]"):
        isorun.Embedder(model, **options)
    with pytest.raises(InvalidArgument, match="outputs must name a single output, got"):
        isorun.Embedder(model, outputs=["hidden", "other"], **options)
    with (
        isorun.Embedder(model, outputs=["hidden"], **options) as hidden,
        isorun.Embedder(model, outputs=("other",), **options) as other,
    ):
        np.testing.assert_array_equal(hidden.embed(["a man eats"]), -other.embed(["a man eats"]))
