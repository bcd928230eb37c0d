"""Rotations by position in graphs that OpenVINO computes in fewer than 32 bits.

It rounds positions and angles like everything else, unless it recognizes the rotation (2026.4.1): in bf16, a token at
place 300 is rotated like one at 302. Whole numbers are not rounded. Here the cosine and the sine of an angle come from
two tables, for places by 256 and for those between, by the sums

    cos(a + b) = cos a cos b - sin a sin b    and    sin(a + b) = sin a cos b + cos a sin b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import openvino

_STEP = 256
_STEPS = 1024  # of the table of every 256th place
_SAME_ELEMENTS = ("Unsqueeze", "Reshape", "Squeeze")


def keep_angles(graph: openvino.Model) -> None:
    """Replace the cosines and sines of places times constant rates, in place."""
    import openvino.opset13 as ops

    known: dict[tuple[str, bytes], dict[str, Any]] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() not in ("Cos", "Sin") or (factors := _factors(node)) is None:
            continue
        places, rates = factors
        key = places.get_node().get_friendly_name(), rates.tobytes()
        if key not in known:
            known[key] = _both(ops, places, rates)
        replacement = known[key][node.get_type_name()].output(0)
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(replacement)


def _factors(node: Any) -> tuple[Any, np.ndarray] | None:
    """The whole numbers (n) and the rates (r) whose products (n, r) a node is computed from."""
    product = node.input_value(0).get_node()
    if product.get_type_name() != "Multiply":
        return None
    sides = [product.input_value(index) for index in (0, 1)]
    rates = next((side.get_node() for side in sides if side.get_node().get_type_name() == "Constant"), None)
    if rates is None or rates.get_element_type().to_string() != "f32" or product.get_output_partial_shape(0).rank != 2:
        return None
    places = next(side for side in sides if side.get_node() is not rates)
    while places.get_node().get_type_name() in _SAME_ELEMENTS:
        places = places.get_node().input_value(0)
    if places.get_node().get_type_name() != "Convert":
        return None
    numbers = places.get_node().input_value(0)
    is_whole = numbers.get_element_type().to_string() in ("i64", "i32")
    values = np.asarray(rates.data, np.float32)
    return (numbers, values.reshape(-1)) if is_whole and values.size == values.shape[-1] else None


def _both(ops: Any, places: Any, rates: np.ndarray) -> dict[str, Any]:
    """Cosines and sines (n, r)."""
    whole = ops.convert(ops.reshape(places, np.array([-1]), special_zero=False), "i64")
    high = ops.divide(whole, np.array(_STEP))
    low = ops.subtract(whole, ops.multiply(high, np.array(_STEP)))

    def table(function: Callable[[np.ndarray], np.ndarray], count: int, step: int, index: Any) -> Any:
        angles = np.arange(count)[:, None] * (step * rates.astype(np.float64))
        return ops.gather(ops.constant(function(angles).astype(np.float32)), index, ops.constant(np.array(0)))

    cos_high, sin_high = (table(function, _STEPS, _STEP, high) for function in (np.cos, np.sin))
    cos_low, sin_low = (table(function, _STEP, 1, low) for function in (np.cos, np.sin))
    return {
        "Cos": ops.subtract(ops.multiply(cos_high, cos_low), ops.multiply(sin_high, sin_low)),
        "Sin": ops.add(ops.multiply(sin_high, cos_low), ops.multiply(cos_high, sin_low)),
    }
