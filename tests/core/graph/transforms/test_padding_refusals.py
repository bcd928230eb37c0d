"""Exports that keep their padding, with the reason."""

from __future__ import annotations

import exports
from isorun.graph import pipeline
from isorun.graph.transforms import padding_removal


def test_refuses_a_mask_that_is_computed_from_hidden_states() -> None:
    """The size that the mask is expanded by is a constant here, and the other one is that of the embeddings."""
    model = exports.model("xlm-r-torchscript14-sdpa")
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs) if value is not None}
    size, axis = values["/model/Gather_3_output_0"], values["/model/Constant_20_output_0"]
    size.replace_all_uses_with(axis)
    pipeline.fuse(model)
    assert "hidden states" in padding_removal.examine(model).refusal
