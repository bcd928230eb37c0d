"""Graphs that say their own precision: what a runtime is given that computes in the types that it is given.

- ``fp16.py``: weights and activations in fp16
- ``int8.py``: dense layers in 8 bits, by a table that ``ranges.py`` makes of activations that were seen
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isorun.errors import UnsupportedModel, did_you_mean

if TYPE_CHECKING:
    import onnx_ir as ir

PRECISIONS = ("fp16",)
"""The precisions that graphs are written in."""


def write(model: ir.Model, precision: str) -> dict[str, Any]:
    """Write a graph, in the fused form or in any other, in one of :data:`PRECISIONS`, in place.

    Returns:
        What is worth knowing of it, as plain data: for provenance and reports.

    Raises:
        UnsupportedModel: the graph cannot be written in it.
    """
    if precision == "fp16":
        from isorun.graph.transforms.precision import fp16

        report = fp16.convert(model)
        return {"fp16": {"converted": report.converted, "kept": [asdict(each) for each in report.kept]}}
    raise UnsupportedModel(f"isorun writes no graph in {precision!r}{did_you_mean(precision, PRECISIONS)}")
