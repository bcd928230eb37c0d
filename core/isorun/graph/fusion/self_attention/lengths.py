"""What an attention reads or cuts, which has to follow the same rule in rows longer than the samples."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import numbers
from isorun.graph.analysis.evaluate import ancestors, array, is_constant, sizes
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.io.nodes import needed
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse

_LONG, _LONGEST = 4096, 1 << 15
_FEW = 16  # elements of a value that is a number, or a shape


def check(probes: Probes, pattern: AttentionPattern, value: ir.Value) -> None:
    """Check that a value is in long rows what short ones let expect: a number, or a table of one number, is the
    same, sizes grow by as much with each token, and a table by place has the same rows first.

    Raises:
        CannotFuse: it is not.
    """
    if is_constant(value) or probes.fixed:
        return
    lengths = probes.lengths[:2]
    first, second = (pattern.evaluated(probes, value, length) for length in lengths)
    by_place = [
        axis for axis, sizes_of in enumerate(zip(first.shape, second.shape, strict=False)) if sizes_of == lengths
    ]
    is_number = bool(second.size and (second == second.flat[0]).all())
    if second.dtype.kind == "f" and (is_number or len(by_place) == 1):
        length = _long_length(probes, value) if len(by_place) < 2 else _LONG
        long = pattern.evaluated(probes, value, length)
        if not is_number and long.ndim == second.ndim and long.shape[by_place[0]] == length:
            long = np.take(long, np.arange(lengths[1]), by_place[0])
        expected = second.flat[0] if is_number else second
    elif second.dtype.kind in "iu" and second.size <= _FEW and first.shape == second.shape:
        length = min(max(numbers.compared([value]), default=0) + 2, _LONGEST)
        if length <= lengths[1]:  # nothing that it is compared with: whole sizes, whose evaluation takes all of them
            return
        long = pattern.evaluated(probes, value, length)
        expected = first + (second - first) / (lengths[1] - lengths[0]) * (length - lengths[0])
    else:
        return
    if (not is_number and long.shape != expected.shape) or not np.allclose(long, expected, rtol=1e-5, atol=1e-6):
        raise CannotFuse(f"it reads {value.name!r}, which is computed in another way in longer rows")


def check_cuts(probes: Probes, pattern: AttentionPattern) -> None:
    """Check that no slice of its own values cuts long rows.

    Raises:
        CannotFuse: one does.
    """
    for node in pattern.inside:
        if node.op_type != "Slice" or probes.fixed:
            continue
        limits = {int(end) for end in _list(node.inputs[2]) if max(probes.lengths) < end < _LONGEST}
        if not limits:
            continue
        source = needed(node.inputs[0])
        short, longer = (pattern.evaluated(probes, source, length).shape for length in probes.lengths[:2])
        axes = _list(node.inputs[3]) if len(node.inputs) > 3 else range(len(short))
        if any(short[int(axis)] != longer[int(axis)] for axis in axes):
            raise CannotFuse(f"it does not compute softmax(scale Q K^T + mask) V: it cuts rows at {max(limits)}")


def _long_length(probes: Probes, value: ir.Value) -> int:
    """That of the shortest table that is read, or one above the numbers that are computed with."""
    tables = [max(sizes(constant), default=1) for constant in filter(is_constant, ancestors(value))]
    if rows := [rows for rows in tables if rows > max(probes.lengths)]:
        return min(*rows, _LONGEST)
    return max([_LONG, *(number + 2 for number in numbers.whole([value]) if number + 2 <= _LONGEST)])


def _list(value: ir.Value | None) -> list[float]:
    return [] if value is None or not is_constant(value) else array(value).reshape(-1).tolist()
