"""Operators that OpenVINO does not compute of text, without an error: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    pass

_TEXT = "a text that is too long to be kept in the object that refers to it"


def _row(operator: str, graph: str, feeds: dict[str, np.ndarray], opset: int = 17) -> Fault:
    return fault(
        f"{operator} | text | it ends the process, or reads memory that is not its own",
        f"g {graph}",
        applies=lambda node, _: any(value.dtype.name == "STRING" for value in node.inputs if value and value.dtype),
        opset=opset,
        feeds=feeds,
        ends_process=True,
    )


_ROW, _IMAGE = {"x": np.full(4, _TEXT, object)}, {"x": np.full((1, 4, 1, 1), _TEXT, object)}
_BLOCKS = "d = DepthToSpace <blocksize = 2> (x)"
ROWS = (
    _row("Slice", "(string[a] x) => (string[n] y) <int64[1] b = {1}, int64[1] e = {9}> { y = Slice (x, b, e) }", _ROW),
    _row("Split", "(string[a] x) => (string[n] y, string[m] z) <int64[2] p = {1, 3}> { y, z = Split (x, p) }", _ROW),
    _row(
        "OneHot",
        f'(int64[a] i) => (string[n, m] y) <int64 d = {{3}}, string[2] v = {{"{_TEXT}", "b"}}> '
        "{ y = OneHot (i, d, v) }",
        {"i": np.array([1, 0])},
    ),
    _row("DepthToSpace", f"(string[a, b, c, e] x) => (string[i, j, k, l] d) {{ {_BLOCKS} }}", _IMAGE),
    _row(
        "SpaceToDepth",
        f"(string[a, b, c, e] x) => (string[i, j, k, l] y) {{ {_BLOCKS} y = SpaceToDepth <blocksize = 2> (d) }}",
        _IMAGE,
    ),
)
