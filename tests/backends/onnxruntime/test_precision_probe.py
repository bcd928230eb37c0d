"""Measuring the precision of a provider."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from isorun.errors import BackendFailed
from isorun_backends.onnxruntime import precision_probe

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
import make_precision_probe


class Rounding:
    """A session that rounds the operands and the result of its product."""

    def __init__(self, rounded, *, sums=False):
        self._rounded, self._sums = rounded, sums

    def run(self, _, feeds):
        x, w = self._rounded(feeds["x"]), self._rounded(precision_probe.numbers(64, 16, 37))
        if not self._sums:
            return [self._rounded(x @ w)]
        total = np.zeros((32, 16), np.float32)
        for column, row in zip(x.T, w, strict=True):
            total = self._rounded(total + self._rounded(np.outer(column, row)))
        return [total]


def to_bits(bits):
    """A function that rounds to a mantissa of so many bits, with the range of fp32."""

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
def test_tells_precisions_apart(rounded, name):
    assert precision_probe.of_session(Rounding(rounded)) == name


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_sums_in_fp16_are_not_taken_for_bf16():
    session = Rounding(lambda array: array.astype(np.float16).astype(np.float32), sums=True)
    assert precision_probe.of_session(session) == "fp16"


def test_rejects_a_result_that_is_not_finite():
    with pytest.raises(BackendFailed, match="not finite"):
        precision_probe.of_session(Rounding(lambda array: array * np.nan))


def test_the_cpu_provider_computes_in_fp32():
    assert precision_probe.measure("CPUExecutionProvider", lambda _: ["CPUExecutionProvider"]) == "fp32"


def test_rejects_a_provider_that_leaves_the_product_to_another():
    with pytest.raises(BackendFailed, match=r"OddProvider.*CPUExecutionProvider"):
        precision_probe.measure("OddProvider", lambda _: ["CPUExecutionProvider"])


def test_rejects_a_provider_that_cannot_be_set_up():
    def refuse(_: onnxruntime.SessionOptions) -> list[str]:
        raise ValueError("no such device")

    with pytest.raises(BackendFailed, match="no such device"):
        precision_probe.measure("OddProvider", refuse)


def test_the_models_are_what_their_script_writes():
    for precision, path in {"fp32": precision_probe.MODEL, **precision_probe.TYPED}.items():
        assert onnx.load(path) == make_precision_probe.model(precision)


def test_a_provider_that_fails_to_run_is_a_failure_of_the_backend():
    class Failing:
        def run(self, *_):
            raise RuntimeError("the device does not support f16")

    with pytest.raises(BackendFailed, match="does not support f16"):
        precision_probe.of_session(Failing())
