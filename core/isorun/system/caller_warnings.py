"""Warnings that point to the line of the caller, not into isorun."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def warn(message: str, category: type[Warning]) -> None:
    """Warn where isorun was called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
