"""Integers that fp32 does not hold."""

import numpy as np
import onnx
import pytest

import isorun

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def session(text: str) -> isorun.Session:
    return isorun.Session(onnx.parser.parse_model(f"{HEADER} {text}").SerializeToString(), "openvino")


def rewritten(opened: isorun.Session) -> list[str]:
    notes: list[str] = opened.provenance.details.get("graph", {}).get("worked_around", [])
    return notes


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_ids_are_told_apart(kind: str) -> None:
    text = f"g ({kind}[n] x) => (bool[n] y) <{kind} id = {{100000001}}> {{ y = Equal (x, id) }}"
    with session(text) as opened:
        ids = np.array([100_000_000, 100_000_001, 100_000_002], kind)
        assert opened.run(None, {"x": ids})[0].tolist() == [False, True, False]


@pytest.mark.parametrize(
    "body",
    [
        "y = Equal (x, small)",
        "y = Less (small, x)",
        "n = Shape (x) y = GreaterOrEqual (x, n)",
        "n = Shape (x) m = Add (n, small) y = LessOrEqual (m, x)",
    ],
)
def test_sides_that_fp32_holds_are_compared_as_they_are(body: str) -> None:
    with session(f"g (int64[n] x) => (bool[m] y) <int64[1] small = {{5}}> {{ {body} }}") as opened:
        assert rewritten(opened) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((0, 65536), [0, 32768]), ((1, -5), []), ((-65536, 0), [-65536, -32768]), ((3, 3), [])],
)
def test_ranges_of_large_steps(arguments: tuple[int, int], expected: list[int]) -> None:
    with session("g (int64 a, int64 b) => (int64[n] y) <int64 d = {32768}> { y = Range (a, b, d) }") as opened:
        feeds = dict(zip("ab", map(np.array, arguments), strict=True))
        assert opened.run(None, feeds)[0].tolist() == expected
