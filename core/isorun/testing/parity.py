"""The measures of agreement, by the name that plugins and their tests have for them: see :mod:`isorun.parity`."""

from __future__ import annotations

from isorun.parity import DEFAULT_TOLERANCES, OutputParity, Parity, Tolerance, compare

__all__ = ["DEFAULT_TOLERANCES", "OutputParity", "Parity", "Tolerance", "compare"]
