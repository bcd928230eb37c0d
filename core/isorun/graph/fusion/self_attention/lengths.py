"""Numbers that an attention multiplies or adds, which have to be the same in rows longer than the samples."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import ancestors, is_constant, sizes
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse

_MAX_LENGTH = 4096


class Lengths:
    """Compares what attentions read in short and in long rows.

    Args:
        probes: evaluate the graph on samples.
    """

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._same: set[ir.Value] = set()

    def check(self, pattern: AttentionPattern, value: ir.Value) -> None:
        """Check that a number, or a table of one number, is the same in long rows.

        Raises:
            CannotFuse: it is not.
        """
        if is_constant(value) or value in self._same or self._probes.fixed:
            return
        self._same.add(value)
        short_length = self._probes.lengths[0]
        short = self._evaluated(pattern, value, short_length)
        if short.dtype.kind != "f" or not short.size or not (short == short.flat[0]).all():
            return
        tables = (max(sizes(constant), default=1) for constant in filter(is_constant, ancestors(value)))
        longest = min((rows for rows in tables if rows > max(self._probes.lengths)), default=_MAX_LENGTH)
        long = self._evaluated(pattern, value, min(longest, _MAX_LENGTH))
        if not np.allclose(long, short.flat[0], rtol=1e-5, atol=0):
            self._same.discard(value)
            raise CannotFuse(f"it multiplies or adds {value.name!r}, which is another number in longer rows")

    def _evaluated(self, pattern: AttentionPattern, value: ir.Value, length: int) -> np.ndarray:
        samples = {**self._probes.feeds(length), **pattern.around(self._probes.rows, length)}
        return self._probes.evaluator(samples)(value)
