"""What makes the rows of tract's table of faults."""

from __future__ import annotations

from functools import partial

from isorun.plugin import Fault

fault = partial(Fault, versions="tract 0.23.9")
