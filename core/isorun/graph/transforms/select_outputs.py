"""Selection of a graph's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import InvalidFeeds, did_you_mean


def keep(model: ir.Model, names: Sequence[str]) -> None:
    """Keep these outputs, in this order, and remove nodes that only others need, in place. All inputs are kept.

    Raises:
        InvalidFeeds: the graph has no output with one of the names.
    """
    known = {value.name: value for value in model.graph.outputs if value.name}
    for name in names:
        if name not in known:
            raise InvalidFeeds(f"The model has no output {name!r}{did_you_mean(name, known)}")
    model.graph.outputs[:] = [known[name] for name in names]
    common.RemoveUnusedNodesPass()(model)
