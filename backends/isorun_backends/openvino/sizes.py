"""Invalid sizes for which OpenVINO returns an answer: rows of the table in ``faults``."""

from __future__ import annotations

import numpy as np

from isorun.plugin import Fault
from isorun_backends.openvino import conditions, rewrites
from isorun_backends.openvino.row import fault


def _window(operator: str) -> Fault:
    return fault(
        operator,
        "a computed size that is negative",
        "a window of its absolute value",
        f"g (int64 n) => (float[a] y) {{ y = {operator} (n) }}",
        applies=conditions.computes_input(0),
        rewrite=rewrites.window_of_size,
        feeds={"n": np.array(-5)},
    )


ROWS = (
    *map(_window, ("HannWindow", "HammingWindow", "BlackmanWindow")),
    fault(
        "Compress",
        "more conditions than rows",
        "memory after the last row",
        "g (float[a] x, bool[b] k) => (float[c] y) { y = Compress <axis = 0> (x, k) }",
        applies=conditions.computes_input(1),
        rewrite=rewrites.compress_rows,
        feeds={"x": np.array([1, 2, 3], np.float32), "k": np.ones(4, bool)},
        expected=[np.array([1, 2, 3], np.float32)],
    ),
    fault(
        "Split",
        "a computed size that is negative",
        "memory after the last element",
        "g (float[a] x, int64[2] n) => (float[b] y, float[c] z) { y, z = Split <axis = 0> (x, n) }",
        applies=conditions.computes_input(1),
        rewrite=rewrites.split_into_sizes,
        feeds={"x": np.arange(4, dtype=np.float32), "n": np.array([-1, 5])},
        expected=[np.zeros(0, np.float32), np.zeros(0, np.float32)],
        invalid=True,
    ),
)
