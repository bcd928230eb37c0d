"""What makes the rows of OpenVINO's table of faults."""

from __future__ import annotations

from isorun_backends.nodes import Rows

fault = Rows("2026.4.1")
