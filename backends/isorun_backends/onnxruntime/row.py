"""Makes rows of the tables of ONNX Runtime's faults."""

from __future__ import annotations

from isorun_backends.nodes import Rows

fault = Rows("1.31.1, 1.32.0")
fault_before_1_32 = Rows("1.31.1")
"""What 1.32.0 computes as ONNX defines it. The rows remain as long as older versions may be installed."""
fault_in_1_32 = Rows("1.32.0")
"""Of 1.32.0, and not known of older ones."""
