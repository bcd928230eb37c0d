"""What OpenVINO computes wrongly of images: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.common_faults import local_response
from isorun_backends.nodes import Nodes, attribute_of, differs, dtype_of, every, has
from isorun_backends.openvino import conditions
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_IMAGE = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
_REGIONS = "float[1, 1, 4, 4] x, float[n, 4] r"
# The norms of the windows at 0 and 2, of which the second ends outside.
_ROOTS = np.sqrt([[[[(_IMAGE[0, 0, i : i + 3, j : j + 3] ** 2).sum() for j in (0, 2)] for i in (0, 2)]]])


def _resize(condition: str, result: str, applies: Any, attributes: str, inputs: str = "x, n, s") -> Fault:
    return fault(
        f"Resize | {condition} | {result}",
        "g (float[1, 1, 4, 4] x) => (float[1, 1, h, w] y) "
        f"<float[0] n = {{}}, float[4] s = {{1, 1, 0.6, 0.6}}, int64[4] z = {{1, 1, 2, 3}}> "
        f"{{ y = Resize <{attributes}> ({inputs}) }}",
        applies=applies,
        opset=19,
        feeds={"x": _IMAGE},
    )


def _pool(operator: str, condition: str, applies: Any, attributes: str = "", expected: Any = None) -> Fault:
    return fault(
        f"{operator} | {condition} | a last window that ends outside counts as a whole one",
        "g (float[1, 1, h, w] x) => (float[1, 1, i, j] y) "
        f"{{ y = {operator} <{attributes} ceil_mode = 1, kernel_shape = [3, 3], strides = [2, 2]> (x) }}",
        applies=applies,
        opset=19,
        feeds={"x": _IMAGE},
        expected=expected,
    )


def _samples_by_size(node: ir.Node, opset: int) -> bool:
    enlarges = opset < 16 or attribute_of(node, "coordinate_transformation_mode") == "output_half_pixel"
    return not enlarges and attribute_of(node, "sampling_ratio", 0) == 0


def _sampled(op: Nodes, node: ir.Node) -> ir.Value:
    return op(node.op_type, *node.inputs, **{"sampling_ratio": 0, **node.attributes})


def _zero_for_nothing(op: Nodes, node: ir.Node) -> ir.Value:
    """The operator, and 0 for the regions without a height or a width."""
    region = node.inputs[1]
    mean = _sampled(op, node)
    start, end, axis = (op.constant([number]) for number in (0, 2, 1))
    sides = op("Sub", op("Slice", region, end, op.constant([4]), axis), op("Slice", region, start, end, axis))
    shorter = op("Min", *(op("Gather", sides, op.constant(place), axis=1) for place in (0, 1)))
    zero = op.constant(0, dtype_of(region, np.float32))
    has_area = op("Greater", op("Reshape", shorter, op.constant([-1, 1, 1, 1])), zero)
    return op("Where", has_area, mean, zero)


ROWS = (
    _resize("`antialias` = 1", "another filter", differs("antialias", 0), 'mode = "cubic", antialias = 1'),
    _resize(
        "cubic with `exclude_outside` = 1",
        "it weighs positions outside",
        every(differs("exclude_outside", 0), has("mode", "cubic")),
        'mode = "cubic", exclude_outside = 1',
    ),
    _resize(
        "`keep_aspect_ratio_policy` other than `stretch`",
        "it stretches",
        differs("keep_aspect_ratio_policy", "stretch"),
        'mode = "nearest", keep_aspect_ratio_policy = "not_larger"',
        "x, n, n, z",
    ),
    fault(
        "MaxPool | `storage_order` = 1 with the output `Indices` | indices in rows",
        "g (float[1, 1, 2, 8] x) => (float[1, 1, 1, 4] y, int64[1, 1, 1, 4] i) "
        "{ y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], storage_order = 1> (x) }",
        applies=every(conditions.returns_indices, differs("storage_order", 0)),
        feeds={"x": _IMAGE.reshape(1, 1, 2, 8)},
    ),
    fault(
        "MaxPool | `auto_pad` with the output `Indices` | it pads at the other end",
        "g (float[1, 1, w] x) => (float[1, 1, n] y, int64[1, 1, n] i) "
        '{ y, i = MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [3]> (x) }',
        applies=every(conditions.returns_indices, conditions.same_size),
        feeds={"x": np.arange(1, 8).reshape(1, 1, 7)},
        expected=[[[[2, 3, 4, 5, 6, 7, 7]]], [[[1, 2, 3, 4, 5, 6, 6]]]],
    ),
    fault(
        "MaxPool | `ceil_mode` = 1 with a last window that begins in the padding | it keeps the window",
        "g (float[1, 1, 2, 2] x) => (float[1, 1, a, b] y) "
        "{ y = MaxPool <kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1> (x) }",
        applies=conditions.pools_beyond,
        feeds={"x": np.arange(4).reshape(1, 1, 2, 2)},
    ),
    _pool(
        "AveragePool",
        "`ceil_mode` = 1 with `count_include_pad` = 1",
        every(differs("ceil_mode", 0), differs("count_include_pad", 0)),
        "pads = [1, 1, 1, 1], count_include_pad = 1,",
    ),
    _pool("LpPool", "`ceil_mode` = 1", differs("ceil_mode", 0), expected=[_ROOTS]),
    local_response(
        *(fault, "an even `size`, or a `bias` other than 1", "sums of fewer channels; a bias of 1"),
        lambda node, _: attribute_of(node, "size", 1) % 2 == 0 or attribute_of(node, "bias", 1.0) != 1,
    ),
    fault(
        "ConvTranspose | `auto_pad` = SAME_UPPER or SAME_LOWER | no padding",
        "g (float[1, 1, h, w] x) => (float[1, 1, i, j] y) <float[1, 1, 2, 2] k = {1, 2, 3, 4}> "
        '{ y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, k) }',
        applies=conditions.same_size,
        feeds={"x": _IMAGE},
    ),
    fault(
        "RoiAlign | `mode` = max | another maximum",
        "g (float[1, 1, 4, 4] x, float[1, 4] r) => (float[1, 1, 2, 2] y) <int64[1] i = {0}> "
        '{ y = RoiAlign <mode = "max", output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, i) }',
        applies=has("mode", "max"),
        feeds={"x": _IMAGE, "r": [[0, 0, 3, 3]]},
    ),
    fault(
        "RoiAlign | no `sampling_ratio` | the number at one place of each part, as with 1",
        f"g ({_REGIONS}) => (float[n, 1, 1, 1] y) <int64[2] i = {{0, 0}}> "
        '{ y = RoiAlign <coordinate_transformation_mode = "output_half_pixel"> (x, r, i) }',
        applies=lambda node, opset: "sampling_ratio" not in node.attributes and not _samples_by_size(node, opset),
        rewrite=_sampled,
        feeds={"x": _IMAGE**2, "r": np.array([[0, 0, 3, 3], [0, 0, 2, 2]], np.float32)},
    ),
    fault(
        "RoiAlign | `sampling_ratio` = 0, of regions without a height or a width (from opset 16, unless "
        "`output_half_pixel`) | NaN, or the number at a place, instead of 0",
        f"g ({_REGIONS}) => (float[n, 1, 1, 1] y) <int64[2] i = {{0, 0}}> {{ y = RoiAlign (x, r, i) }}",
        applies=_samples_by_size,
        rewrite=_zero_for_nothing,
        feeds={"x": _IMAGE**2, "r": np.array([[1, 1, 2, 1], [0, 0, 2, 2]], np.float32)},
    ),
    fault(
        "SpaceToDepth | `mode` = CRD | the order of DCR",
        'g (float[1, 2, 2, 2] x) => (float[1, 8, 1, 1] y) { y = SpaceToDepth <blocksize = 2, mode = "CRD"> (x) }',
        applies=has("mode", "CRD"),
        opset=28,
        feeds={"x": np.arange(8).reshape(1, 2, 2, 2)},
    ),
)
