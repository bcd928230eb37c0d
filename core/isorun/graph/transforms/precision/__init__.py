"""Conversion of graphs to another precision, for runtimes that compute in the graph's types.

- ``half.py``: weights and activations in fp16 or bf16
- ``whole.py``: those of a model in fp16 or bf16 in fp32
- ``int8.py``: dense layers in 8 bits, with parameters that ``ranges.py`` computes from calibration activations
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isorun.errors import UnsupportedModel, did_you_mean

if TYPE_CHECKING:
    import onnx_ir as ir

PRECISIONS = ("fp16", "bf16")
"""The precisions that graphs can be converted to."""


def write(model: ir.Model, precision: str) -> dict[str, Any]:
    """Convert a graph, fused or not, to one of :data:`PRECISIONS`, or what it has in these to fp32, in place.

    Returns:
        A summary as plain data, for provenance and reports.

    Raises:
        UnsupportedModel: the graph cannot be converted.
    """
    from isorun.graph.transforms.precision import half, whole

    if precision == "fp32":
        return {"fp32": {"converted": whole.convert(model)}}
    for dtype, name in half.NAMES.items():
        if name == precision:
            report = half.convert(model, dtype)
            return {name: {"converted": report.converted, "kept": [asdict(node) for node in report.kept]}}
    raise UnsupportedModel(f"Cannot convert a graph to {precision!r}{did_you_mean(precision, PRECISIONS)}")
