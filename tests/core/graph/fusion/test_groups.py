"""Layers in groups (SqueezeBERT): what two of them have between them is not joined."""

from __future__ import annotations

import pytest

import exports
from isorun.graph.ops import functions
from isorun.graph.pipeline import fuse

LAYERS, GROUPS = 3, 4


@pytest.mark.parametrize("label", ["squeezebert-torchscript17-eager", "squeezebert-dynamo18-eager"])
def test_each_group_has_its_own_activation(label: str) -> None:
    model = exports.model(label)
    fuse(model)
    fused = [node for node in model.graph if functions.is_fused(node)]
    assert [node.op_type for node in fused].count("BiasGelu") == LAYERS * GROUPS
    joined = [node for node in model.graph if node.op_type == "Concat" and node.attributes.get_int("axis", 0) == -1]
    assert len(joined) == LAYERS * 4  # queries, keys, values, and the output
    given = exports.given(label)
    assert exports.agree(label, exports.run(model, given))
