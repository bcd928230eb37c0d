"""The precision of a provider, measured."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from isorun.errors import BackendFailed
from isorun_backends.onnxruntime import precision

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
import make_precision


class Rounding:
    """A session that rounds what it multiplies, and its answer."""

    def __init__(self, rounded):
        self._rounded = rounded

    def run(self, _, feeds):
        w = precision.numbers(64, 16, 37)
        return [self._rounded(self._rounded(feeds["x"]) @ self._rounded(w))]


def to_bits(bits):
    """Rounds to so many bits of mantissa, fp32's range left as it is."""

    def rounded(array):
        mantissa, exponent = np.frexp(array.astype(np.float64))
        return np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent).astype(np.float32)

    return rounded


@pytest.mark.parametrize(
    ("rounded", "name"),
    [
        (lambda array: array, "fp32"),
        (to_bits(11), "tf32"),
        (lambda array: array.astype(np.float16).astype(np.float32), "fp16"),
        (to_bits(8), "bf16"),
    ],
    ids=["fp32", "tf32", "fp16", "bf16"],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_each_is_told_from_the_others(rounded, name):
    assert precision.of_session(Rounding(rounded)) == name


def test_an_answer_that_is_not_finite():
    with pytest.raises(BackendFailed, match="is not finite"):
        precision.of_session(Rounding(lambda array: array * np.nan))


def test_the_cpu_provider_computes_in_fp32():
    assert precision.measure("CPUExecutionProvider", lambda _: ["CPUExecutionProvider"]) == "fp32"


def test_a_provider_that_leaves_the_product_to_another():
    with pytest.raises(BackendFailed, match="The OddProvider leaves a product of two matrices to CPUExecutionProvider"):
        precision.measure("OddProvider", lambda _: ["CPUExecutionProvider"])


def test_a_provider_that_cannot_be_set_up():
    def refuse(_: onnxruntime.SessionOptions) -> list[str]:
        raise ValueError("no such device")

    with pytest.raises(BackendFailed, match="The OddProvider cannot be set up: no such device"):
        precision.measure("OddProvider", refuse)


def test_the_model_is_what_its_script_writes():
    assert onnx.load(precision._MODEL) == make_precision.model()
    assert make_precision.PLACE == precision._MODEL
