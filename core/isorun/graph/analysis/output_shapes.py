"""The shapes of a model's outputs, as computed rather than as declared."""

from __future__ import annotations

import onnx_ir as ir

from isorun.graph.analysis import batch_sizes
from isorun.graph.io import shape_inference

_MARK = "isorun.unconfirmed"  # in a graph's metadata that is not written


def correct(model: ir.Model) -> None:
    """Replace what a model declares of its outputs' shapes where others are computed, in place.

    Exporters write the sizes of their example there, and some tools other ranks, which runtimes ignore. What ONNX's
    inference does not know is computed for a batch, and for one row if axes of one are dropped; what they contradict is
    unknown.
    """
    values = shape_inference.correct_outputs(model)
    squeezes = (node for node in model.graph.all_nodes() if node.op_type == "Squeeze")
    drops_ones = any(len(node.inputs) < 2 and "axes" not in node.attributes for node in squeezes)
    batches = [batch_sizes.BATCHES[0], *([1] if drops_ones else [])]
    for batch in batches if values else ():
        shapes, _ = batch_sizes.infer(model, batch)
        model.graph.meta[_MARK] = tuple(value.name or "" for value in values if value.name not in shapes)
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
                [
                    size if (size if isinstance(size, int) else known.get(size, actual)) == actual else None
                    for size, actual in sizes
                ]
            )


def unconfirmed(model: ir.Model) -> tuple[str, ...]:
    """The outputs whose declared rank and sizes nothing confirmed: they depend on values, or on unknown operators.

    Args:
        model: the model, whose shapes were corrected.
    """
    names: tuple[str, ...] = model.graph.meta.get(_MARK, ())
    return names
