"""Invalid sizes for which OpenVINO returns an answer: rows of the table in ``faults``."""

from __future__ import annotations

import numpy as np

from isorun.plugin import Fault
from isorun_backends.openvino import conditions, rewrites
from isorun_backends.openvino.arithmetic import VERSIONS


def _window(operator: str) -> Fault:
    return Fault(
        operator=operator,
        condition="a computed size that is negative",
        result="a window of its absolute value",
        versions=VERSIONS,
        applies=conditions.computes_input(0),
        rewrite=rewrites.window_of_size,
        model=f"g (int64 n) => (float[a] y) {{ y = {operator} (n) }}",
        feeds={"n": np.array(-5)},
        expected=[np.zeros(0, np.float32)],
    )


ROWS = (
    *map(_window, ("HannWindow", "HammingWindow", "BlackmanWindow")),
    Fault(
        operator="Compress",
        condition="more conditions than rows",
        result="memory after the last row",
        versions=VERSIONS,
        applies=conditions.computes_input(1),
        rewrite=rewrites.compress_rows,
        model="g (float[a] x, bool[b] k) => (float[c] y) { y = Compress <axis = 0> (x, k) }",
        feeds={"x": np.array([1, 2, 3], np.float32), "k": np.ones(4, bool)},
        expected=[np.array([1, 2, 3], np.float32)],
    ),
    Fault(
        operator="Split",
        condition="a computed size that is negative",
        result="memory after the last element",
        versions=VERSIONS,
        applies=conditions.computes_input(1),
        rewrite=rewrites.split_into_sizes,
        model="g (float[a] x, int64[2] n) => (float[b] y, float[c] z) { y, z = Split <axis = 0> (x, n) }",
        feeds={"x": np.arange(4, dtype=np.float32), "n": np.array([-1, 5])},
        expected=[np.zeros(0, np.float32), np.zeros(0, np.float32)],
        invalid=True,
    ),
)
