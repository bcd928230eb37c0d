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
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import positions

_LONG, _LONGEST = 4096, 1 << 15
_FAR_TOLERANCE = 0.03  # an angle of 30,000 has steps of 0.002


class Rotations:
    """Adds these inputs to a graph.

    Args:
        graph: the graph.
        probes: its samples.
        probe: finds out how its attentions rotate at longer rows than those of the samples.
    """

    def __init__(self, graph: ir.Graph, probes: Probes, probe: AttentionProbe) -> None:
        self._graph = graph
        self._probes = probes
        self._probe = probe
        self._in_order: dict[ir.Value, ir.Value] = {}
        self._known: dict[tuple[object, ...], dict[str, ir.Value]] = {}

    def inputs(
        self, pattern: AttentionPattern, formula: Formula, key_mask: ir.Value, before: ir.Node
    ) -> dict[str, ir.Value]:
        """``cos``, ``sin`` and ``positions`` of a rotated attention, of nodes that are put before one.

        Args:
            pattern, formula: the attention.
            key_mask: its mask (B, S), which has the length of its rows.
            before: where nodes are put.

        Raises:
            CannotFuse: the rotation at longer rows than those of the samples is another one, or not known.
        """
        dtype = subgraph.dtype(pattern.layers[0].weight)
        key = (pattern.turns, formula.turn.size, formula.turn.interleaved, dtype, key_mask)
        if key not in self._known:
            whole, rates = self._whole_turn(pattern, formula)
            if rates is None:
                self._known[key] = self._by_table(pattern, whole, key_mask, before, dtype)
            else:
                by_rates = (pattern.positions, rates.tobytes(), dtype, key_mask)
                if by_rates not in self._known:
                    self._known[by_rates] = self._by_rates(pattern, rates, key_mask, before, dtype)
                self._known[key] = self._known[by_rates]
        return self._known[key]

    def _whole_turn(self, pattern: AttentionPattern, formula: Formula) -> tuple[Turn, np.ndarray | None]:
        """The rotation by each position of a table, and, where they are constants of the graph, the angles by which
        pairs are turned from one position to the next."""
        fixed, turn = self._probes.fixed, formula.turn
        if fixed and pattern.positions is None:
            return turn, None
        possible = list(rotation.rates(pattern, turn))
        for rates in possible:
            whole = turn.by_rates(rates)
            if self._probe.is_turned(pattern, formula, whole):
                self._require_proportional(pattern, formula, rates)
                return whole, rates
        if fixed or possible:
            raise CannotFuse("the angles of its rotation are not proportional to the position")
        whole = self._probe.long_turn(pattern, formula, rotation.table_length(pattern, self._probes))
        if pattern.positions is not None and not self._probe.is_turned(pattern, formula, whole):
            raise CannotFuse(f"its queries and keys are not rotated by {pattern.positions.name!r} alone")
        return whole, None

    def _require_proportional(self, pattern: AttentionPattern, formula: Formula, rates: np.ndarray) -> None:
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
                turned = self._probe.is_turned(pattern, formula, whole, tolerance=_FAR_TOLERANCE)
            except CannotEvaluate:  # beyond a table that the graph reads
                length //= 2
        if turned is False:
            raise CannotFuse("the angles of its rotation are not proportional to the position in long rows")

    def _by_table(
        self, pattern: AttentionPattern, whole: Turn, key_mask: ir.Value, before: ir.Node, dtype: ir.DataType
    ) -> dict[str, ir.Value]:
        op, numbered = subgraph.Before(before), pattern.positions
        tables = {
            name: op.constant(name, table.astype(dtype.numpy()))
            for name, table in (("cos", whole.cos), ("sin", whole.sin))
        }
        if numbered is None:
            return {**tables, "positions": self._places(key_mask, before)}
        is_long = numbered.dtype == ir.DataType.INT64
        return {**tables, "positions": numbered if is_long else op.cast(numbered, ir.DataType.INT64)}

    def _by_rates(
        self, pattern: AttentionPattern, rates: np.ndarray, key_mask: ir.Value, before: ir.Node, dtype: ir.DataType
    ) -> dict[str, ir.Value]:
        op, numbered = subgraph.Before(before), pattern.positions
        flat = positions.row(op, key_mask) if numbered is None else op("Reshape", numbered, [-1])
        cos, sin = positions.rotation(op, flat, op.constant("rates", rates), dtype)
        at = self._places(key_mask, before) if numbered is None else positions.numbered(op, numbered)
        return {"cos": cos, "sin": sin, "positions": at}

    def _places(self, key_mask: ir.Value, before: ir.Node) -> ir.Value:
        """The positions of tokens in their rows, (1, S): constants if the length is fixed, as that of images is."""
        if key_mask not in self._in_order:
            if self._probes.fixed:
                numbered = ir.tensor(np.arange(self._probes.lengths[0])[None])
                self._in_order[key_mask] = subgraph.constant(self._graph, "isorun.positions", numbered)
            else:
                self._in_order[key_mask] = positions.in_order(subgraph.Before(before), key_mask)
        return self._in_order[key_mask]
