"""What says how queries and keys are rotated, as inputs of a fused attention or of a rotation before it: cosines, sines
and positions, in the canonical form of fused graphs. Layers that are rotated alike share them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import numbers
from isorun.graph.analysis.evaluate import CannotEvaluate
from isorun.graph.fusion.self_attention import rotation
from isorun.graph.fusion.self_attention.formula import AttentionProbe, Formula
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.fusion.self_attention.rotation import Turn
from isorun.graph.matching import subgraph
from isorun.graph.matching.once import Once
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import positions

_LONG, _LONGEST = 4096, 1 << 15
_FAR_TOLERANCE = 0.03  # an angle of 30,000 has steps of 0.002


def inputs(
    probe: AttentionProbe,
    once: Once,
    pattern: AttentionPattern,
    formula: Formula,
    key_mask: ir.Value,
    op: subgraph.Before,
) -> dict[str, ir.Value]:
    """``cos``, ``sin`` and ``positions`` of a rotated attention.

    Args:
        probe: finds out how attentions rotate at longer rows than those of the samples.
        once: what layers share.
        pattern, formula: the attention.
        key_mask: its mask (B, S), which has the length of its rows.
        op: where nodes are put.

    Raises:
        CannotFuse: the rotation at longer rows than those of the samples is another one, or not known.
    """
    dtype, numbered, probes = subgraph.dtype(pattern.layers[0].weight), pattern.positions, probe.probes

    def places() -> ir.Value:
        """The positions of tokens in their rows, (1, S): constants if the length is fixed, as that of images is."""
        if probes.fixed:
            return op.constant("positions", np.arange(probes.lengths[0])[None])
        return positions.in_order(op, key_mask)

    def turning() -> dict[str, ir.Value]:
        whole, rates = _whole_turn(probe, pattern, formula)
        if rates is not None:
            return once((numbered, rates.tobytes(), dtype, key_mask), lambda: by_rates(rates))
        at = once(("places", key_mask), places) if numbered is None else numbered
        at = at if at.dtype in (ir.DataType.INT64, None) else op.cast(at, ir.DataType.INT64)
        tables = {"cos": whole.cos, "sin": whole.sin}
        return {name: op.constant(name, table.astype(dtype.numpy())) for name, table in tables.items()} | {
            "positions": at
        }

    def by_rates(rates: np.ndarray) -> dict[str, ir.Value]:
        flat = positions.row(op, key_mask) if numbered is None else op("Reshape", numbered, [-1])
        cos, sin = positions.rotation(op, flat, op.constant("rates", rates), dtype)
        at = once(("places", key_mask), places) if numbered is None else positions.numbered(op, numbered)
        return {"cos": cos, "sin": sin, "positions": at}

    return once((pattern.turns, formula.turn.size, formula.turn.interleaved, dtype, key_mask), turning)


def _whole_turn(probe: AttentionProbe, pattern: AttentionPattern, formula: Formula) -> tuple[Turn, np.ndarray | None]:
    """The rotation by each position of a table, and, where they are constants of the graph, the angles by which
    pairs are turned from one position to the next."""
    fixed, turn = probe.probes.fixed, formula.turn
    if fixed and pattern.positions is None:
        return turn, None
    possible = list(rotation.rates(pattern, turn))
    for rates in possible:
        whole = turn.by_rates(rates)
        if probe.is_turned(pattern, formula, whole):
            _require_proportional(probe, pattern, formula, rates)
            return whole, rates
    if fixed or possible:
        raise CannotFuse("the angles of its rotation are not proportional to the position")
    whole = probe.long_turn(pattern, formula, rotation.table_length(pattern, probe.probes))
    if pattern.positions is not None and not probe.is_turned(pattern, formula, whole):
        raise CannotFuse(f"its queries and keys are not rotated by {pattern.positions.name!r} alone")
    return whole, None


def _require_proportional(
    probe: AttentionProbe, pattern: AttentionPattern, formula: Formula, rates: np.ndarray
) -> None:
    """Check that the rotation follows the same rates in long rows, as far as the graph accepts them.

    Raises:
        CannotFuse: it does not.
    """
    # Above the places at which a computation of angles may change
    places = [number + 2 for number in numbers.compared(pattern.turns) if number + 2 <= _LONGEST]
    length, turned = max([_LONG, *places]), None
    while turned is None and length > rotation.LONG_LENGTH:
        try:
            whole = formula.turn.by_rates(rates, length)
            turned = probe.is_turned(pattern, formula, whole, tolerance=_FAR_TOLERANCE)
        except CannotEvaluate:  # beyond a table that the graph reads
            length //= 2
    if turned is False:
        raise CannotFuse("the angles of its rotation are not proportional to the position in long rows")
