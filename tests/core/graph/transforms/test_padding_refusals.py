"""Exports that keep their padding, with the reason."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import exports
import isorun
from isorun.graph import pipeline
from isorun.graph.transforms import padding_removal
from written_encoders import VOCABULARY, WIDTH, begun


def test_refuses_a_mask_that_is_computed_from_hidden_states() -> None:
    """The size that the mask is expanded by is a constant here, and the other one is that of the embeddings."""
    model = exports.model("xlm-r-torchscript14-sdpa")
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs) if value is not None}
    size, axis = values["/model/Gather_3_output_0"], values["/model/Constant_20_output_0"]
    size.replace_all_uses_with(axis)
    pipeline.fuse(model)
    assert "hidden states" in padding_removal.examine(model).refusal


def counted(of_ids: bool) -> onnx.ModelProto:
    """An encoder that attends to as many tokens as the mask has ones, or as there are ids other than 0."""
    graph, ids, mask = begun()
    tokens = graph.node("Greater", ids if of_ids else mask, 0)
    number = graph.node("ReduceSum", graph.node("Cast", tokens, to=TensorProto.INT64), [1], keepdims=1)
    before = graph.node("Cast", graph.node("Less", graph.places(ids), number), to=TensorProto.INT64)
    hidden = graph.layer(graph.embedded(ids), graph.adding(graph.mask(before)))
    graph.output(hidden, "hidden", "B", "S", WIDTH)
    return graph.model()


@pytest.mark.parametrize("of_ids", [False, True])
def test_keeps_padding_where_the_mask_is_a_count(of_ids: bool) -> None:
    model = counted(of_ids)
    with pytest.raises(isorun.UnsupportedModel, match=r"count of tokens .*ReduceSum"):
        isorun.Session(model, "ort-cpu", padding="remove")
    mask = np.ones((2, 40), np.int64)
    mask[0, :30] = 0
    feeds = {"input_ids": np.random.default_rng(0).integers(1, VOCABULARY, mask.shape) * mask, "attention_mask": mask}
    with isorun.Session(model, "ort-cpu", padding="auto") as session:
        assert session.provenance.fused["SelfAttention"] == 1
        (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, exports.run(model, feeds)[0], rtol=1e-4, atol=1e-5)
