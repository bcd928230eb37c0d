"""The shapes of a model's outputs, as computed rather than as declared."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.graph.analysis import batch_sizes
from isorun.graph.io import shape_inference

_BATCHES = (batch_sizes.BATCHES[0], 1)  # a Squeeze without axes drops a batch of one


def correct(model: ir.Model) -> None:
    """Replace what a model declares of its outputs' shapes where others are computed, in place.

    Exporters write the sizes of their example there, and some tools other ranks, which runtimes ignore. What ONNX's
    inference does not know is computed for batches of three and one; a rank or size that they contradict is unknown.
    """
    values = shape_inference.correct_outputs(model)
    for batch in _BATCHES if values else ():
        shapes = batch_sizes.shapes_at(model, batch)
        known = {
            symbol: size
            for value in model.graph.inputs
            for symbol, size in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False)
        }
        for value in values:
            declared, computed = value.shape, shapes.get(value.name or "")
            if declared is None or computed is None:
                continue
            if len(declared) != len(computed):
                value.shape = None
                continue
            sizes = zip(declared, computed, strict=True)
            value.shape = ir.Shape(
                [size if _expected(size, actual, known) == actual else None for size, actual in sizes]
            )


def _expected(size: int | ir.SymbolicDim, unknown: int, known: Mapping[int | ir.SymbolicDim, int]) -> int:
    return size if isinstance(size, int) else known.get(size, unknown)


def unconfirmed(model: ir.Model) -> tuple[str, ...]:
    """The outputs whose declared rank and sizes nothing confirms: they depend on values, or on unknown operators.

    Args:
        model: the model, whose shapes are corrected.
    """
    values = shape_inference.correct_outputs(model)
    shapes = batch_sizes.shapes_at(model, _BATCHES[0]) if values else {}
    return tuple(value.name or "" for value in values if value.name not in shapes)
