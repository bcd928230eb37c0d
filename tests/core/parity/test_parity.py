"""Planted errors must fail, whatever the scale of the outputs; rounding must not."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isorun.parity import DEFAULT_TOLERANCES, Parity, Tolerance, compare

scales = st.floats(1e-30, 1e30)
seeds = st.integers(0, 2**32 - 1)
precisions = st.sampled_from(sorted(DEFAULT_TOLERANCES))


def hidden(seed: int, scale: float, batch: int = 3, sequence: int = 5, width: int = 8) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal((batch, sequence, width))


def judge(output: np.ndarray, reference: np.ndarray, precision: str, mask: np.ndarray | None = None) -> Parity:
    return compare({"y": output}, {"y": reference}, mask, DEFAULT_TOLERANCES[precision])


@given(seeds, scales, precisions)
def test_the_same_output_passes_at_any_scale(seed: int, scale: float, precision: str) -> None:
    reference = hidden(seed, scale)
    parity = judge(reference.copy(), reference, precision)
    assert parity.verdict == "pass"
    (output,) = parity.outputs
    assert (output.max_abs, output.max_rel, output.rms, output.argmax) == (0, 0, 0, 1)
    assert output.cosine == pytest.approx(1)


@given(seeds, st.floats(1e-30, 1e30))
def test_rounding_to_float32_passes_as_fp32(seed: int, scale: float) -> None:
    reference = hidden(seed, scale)
    assert judge(reference.astype(np.float32), reference, "fp32").verdict == "pass"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@given(seeds, st.floats(1e-2, 1e3))
def test_rounding_to_its_own_type_passes_as_fp32(dtype: type, seed: int, scale: float) -> None:
    reference = hidden(seed, scale)
    rounded = reference.astype(dtype)
    assert judge(rounded, reference, "fp32").verdict == "pass"
    wrong = (reference * (1 + 4 * float(ml_dtypes.finfo(dtype).eps))).astype(dtype)
    assert judge(wrong, reference, "fp32").verdict == "fail"


@given(seeds, scales, precisions)
def test_zeros_fail_at_any_scale(seed: int, scale: float, precision: str) -> None:
    reference = hidden(seed, scale)
    (output,) = judge(np.zeros_like(reference), reference, precision).outputs
    assert output.reasons
    assert output.rms == pytest.approx(1)
    assert output.cosine == 0


@given(seeds, scales, precisions, st.sampled_from([0.5, 0.9, 1.1, -1.0, 2.0]))
def test_a_scaled_output_fails_though_its_cosine_is_perfect(
    seed: int, scale: float, precision: str, factor: float
) -> None:
    assume(abs(factor - 1) > DEFAULT_TOLERANCES[precision].rms)
    reference = hidden(seed, scale)
    parity = judge(factor * reference, reference, precision)
    assert parity.verdict == "fail"
    assert parity.outputs[0].rms == pytest.approx(abs(factor - 1))


@given(seeds, scales, precisions)
def test_two_swapped_rows_fail(seed: int, scale: float, precision: str) -> None:
    reference = hidden(seed, scale, batch=8, sequence=16)
    swapped = reference.copy()
    swapped[2, [0, 1]] = swapped[2, [1, 0]]
    parity = judge(swapped, reference, precision)
    assert parity.verdict == "fail"
    cosine = parity.outputs[0].cosine
    assert cosine is not None
    assert cosine < DEFAULT_TOLERANCES[precision].cosine


@pytest.mark.parametrize("shape", [(8,), (8, 1), (2, 4, 1)])
def test_a_score_near_zero_may_change_its_sign(shape: tuple[int, ...]) -> None:
    """Such as that of a pair of a reranker: a single number has no direction but its sign."""
    reference = np.array([5.0, -7.0, 3.0, 0.05, 6.0, -4.0, 2.0, -8.0]).reshape(shape)
    (output,) = judge(reference - 0.1, reference, "int8").outputs
    assert (output.reasons, output.cosine) == ((), pytest.approx(1, abs=1e-3))
    assert judge(-reference, reference, "int8").verdict == "fail"


NARROWING = sorted(DEFAULT_TOLERANCES, key=lambda name: DEFAULT_TOLERANCES[name].rms)


class TestAPlantedErrorFailsOneLimitAlone:
    """For each precision and each of its limits, an error that only that limit sees."""

    @staticmethod
    def reference() -> np.ndarray:
        """Rows of size 1 whose greatest two elements are nearly equal."""
        values = np.random.default_rng(0).standard_normal((64, 512))
        values /= np.sqrt(np.mean(np.square(values)))
        order = np.argsort(values, axis=1)
        rows = np.arange(64)
        values[rows, order[:, -1]] = values[rows, order[:, -2]] * (1 + 1e-9)
        return values

    @pytest.mark.parametrize("precision", NARROWING)
    def test_one_element(self, precision: str) -> None:
        reference, limit = self.reference(), DEFAULT_TOLERANCES[precision]
        output = reference.copy()
        place = np.unravel_index(np.argmin(np.abs(reference)), reference.shape)
        output[place] += limit.max_rel * 1.05
        (reason,) = judge(output, reference, precision).reasons
        assert reason.startswith("y: max_rel is")

    @pytest.mark.parametrize("precision", NARROWING)
    def test_all_elements_a_little(self, precision: str) -> None:
        reference, limit = self.reference(), DEFAULT_TOLERANCES[precision]
        (reason,) = judge(reference * (1 + limit.rms * 1.05), reference, precision).reasons
        assert reason.startswith("y: rms is")

    @pytest.mark.parametrize("precision", NARROWING)
    def test_the_direction_of_one_row(self, precision: str) -> None:
        reference, limit = self.reference(), DEFAULT_TOLERANCES[precision]
        output, across = reference.copy(), np.random.default_rng(1).choice([-1.0, 1.0], 512)
        across -= (across @ reference[3]) / (reference[3] @ reference[3]) * reference[3]
        angle = np.arccos(limit.cosine) * 1.05
        output[3] += np.tan(angle) * across * np.linalg.norm(reference[3]) / np.linalg.norm(across)
        output[3] *= np.linalg.norm(reference[3]) / np.linalg.norm(output[3])
        reasons = judge(output, reference, precision).reasons
        assert any(reason.startswith("y: cosine is") for reason in reasons)
        assert len(reasons) == 1 or precision == "fp64"  # so small an angle is an error that the others see too

    @pytest.mark.parametrize("precision", NARROWING)
    def test_the_greatest_of_many_rows(self, precision: str) -> None:
        reference, limit = self.reference(), DEFAULT_TOLERANCES[precision].rms
        order, rows = np.argsort(reference, axis=1), np.arange(64)
        first, second = (rows, order[:, -1]), (rows, order[:, -2])
        for gap, places in ((0.9, set()), (1.1, {"argmax"})):  # of the error that is allowed
            reference[first] = reference[second] + gap * limit
            output = reference.copy()
            output[first], output[second] = reference[second], reference[first]
            assert {reason.split()[1] for reason in judge(output, reference, precision).reasons} == places


def test_argmax_tolerance_allows_one_row() -> None:
    reference = np.tile([1.0, 1.05], (10, 1))
    limits = Tolerance(max_rel=0.1, rms=0.04, cosine=0.9, argmax=0.99)
    for wrong, verdict in ((0, "pass"), (1, "pass"), (2, "fail")):
        output = reference.copy()
        output[:wrong] = output[:wrong, ::-1]
        assert compare({"y": output}, {"y": reference}, None, limits).verdict == verdict


def test_a_signaling_nan_fails_as_any_other() -> None:
    """Memory that a backend freed may hold one; converting it would be an error where NumPy's errors raise."""
    reference = hidden(0, 1.0).astype(np.float32)
    output = reference.copy()
    output.view(np.uint32)[0, 0, 0] = 0x7F800001
    with np.errstate(all="raise"):
        assert judge(output, reference, "fp32").reasons == (
            "y: 1 of 120 values are NaN or infinite, the first at [0, 0, 0]",
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_fails_even_at_padding(value: float) -> None:
    reference = hidden(0, 1.0)
    mask = np.array([[1, 1, 1, 1, 0]] * 3)
    output = reference.copy()
    output[1, 4, 2] = value
    parity = judge(output, reference, "fp32", mask)
    assert parity.reasons == ("y: 1 of 120 values are NaN or infinite, the first at [1, 4, 2]",)
    assert parity.as_dict()["max_abs"] is None


def test_padding_is_not_compared() -> None:
    reference = hidden(0, 1.0)
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    output = np.where(mask[:, :, None] == 1, reference, 7.0)
    parity = judge(output, reference, "fp32", mask)
    assert parity.verdict == "pass"
    assert parity.outputs[0].level == "token"
    assert parity.outputs[0].elements == 7 * 8


def test_one_wrong_real_token_fails_beside_padding() -> None:
    reference = hidden(0, 1.0)
    mask = np.array([[1, 1, 0, 0, 0]] * 3)
    output = reference.copy()
    output[2, 1] = output[2, 2]
    assert judge(output, reference, "bf16", mask).verdict == "fail"


def test_pooled_output_skips_fully_masked_rows() -> None:
    reference = np.random.default_rng(0).standard_normal((3, 8))
    mask = np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0]])
    output = reference.copy()
    output[2] = 0
    parity = judge(output, reference, "fp32", mask)
    assert parity.verdict == "pass"
    assert (parity.outputs[0].level, parity.outputs[0].elements) == ("sequence", 16)
    output[0] = 0
    assert judge(output, reference, "fp32", mask).verdict == "fail"


def test_one_number_a_token_makes_a_row_of_each_sequence() -> None:
    reference = np.array([[1.0, 5.0, 9.0], [1.0, 5.0, 9.0]])
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    output = np.array([[1.0, 5.0, -9.0], [1.0, 9.0, 5.0]])
    (result,) = compare({"y": output}, {"y": reference}, mask, DEFAULT_TOLERANCES["bf16"]).outputs
    assert (result.level, result.elements, result.argmax) == ("token", 5, 0.5)


def test_pooled_output_as_wide_as_the_sequence() -> None:
    mask = np.array([[1, 1, 0, 0]])
    pooled = np.array([[1.0, 2.0, 3.0, 4.0]])
    wrong = np.array([[1.0, 2.0, 3.0, -4.0]])
    tolerance = DEFAULT_TOLERANCES["fp32"]
    assert compare({"pooled": wrong}, {"pooled": pooled}, mask, tolerance, token_level=["hidden"]).verdict == "fail"
    assert compare({"pooled": wrong}, {"pooled": pooled}, mask, tolerance).verdict == "pass"


def test_integers_must_be_equal() -> None:
    reference = np.arange(6).reshape(2, 3)
    assert judge(reference, reference, "bf16").verdict == "pass"
    assert judge(reference + (reference == 4), reference, "bf16").reasons == ("y: 1 of 6 values differ",)


@pytest.mark.parametrize(
    ("output", "reference", "reason"),
    [
        ({}, {"y": np.ones(2)}, "y: there is no such output"),
        ({"y": np.ones(2), "z": np.ones(2)}, {"y": np.ones(2)}, "z: the reference has no such output"),
        ({"y": np.ones(2)}, {"y": np.ones(3)}, "y: its shape is [2]; the reference's is [3]"),
        ({"y": np.ones(2)}, {"y": np.ones(2, np.float32)}, "y: its dtype is float64; the reference's is float32"),
        ({"y": np.ones(2, np.int64)}, {"y": np.ones(2)}, "y: its dtype is int64; the reference's is float64"),
        ({"y": [np.ones(2)]}, {"y": [np.ones(2)]}, "y: only tensors can be compared; this is a list"),
        ({"y": np.ones(2)}, {"y": np.full(2, np.nan)}, "y: the reference itself holds a NaN or an infinity"),
        ({"y": np.ones(0)}, {"y": np.ones(0)}, "nothing was compared: no output has an element at a real token"),
        ({}, {}, "nothing was compared: no output has an element at a real token"),
    ],
)
def test_fails_outputs_that_cannot_be_compared(
    output: dict[str, object], reference: dict[str, object], reason: str
) -> None:
    parity = compare(output, reference, None, DEFAULT_TOLERANCES["fp32"])
    assert parity.verdict == "fail"
    assert reason in parity.reasons


def test_errors_are_absolute_for_a_zero_reference() -> None:
    (output,) = judge(np.full((2, 2), 0.5), np.zeros((2, 2)), "fp32").outputs
    assert (output.max_rel, output.rms, output.cosine) == (0.5, 0.5, None)
    assert judge(np.zeros((2, 2)), np.zeros((2, 2)), "fp32").verdict == "pass"


def test_small_rows_have_no_cosine() -> None:
    reference = np.vstack([np.ones((4, 8)), np.full((1, 8), 1e-7)])
    output = reference.copy()
    output[4] = -output[4]
    assert judge(output, reference, "fp32").verdict == "pass"


@pytest.mark.parametrize("limits", [(1.0, 0.1, 0.9), (0.1, 1.0, 0.9), (0.1, 0.1, 0.0), (-0.1, 0.1, 0.9)])
def test_rejects_a_tolerance_that_accepts_zeros(limits: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="would accept an output of zeros"):
        Tolerance(*limits)


def test_the_optional_limits_count_where_they_are_set() -> None:
    reference = np.array([[1.0, 1.0 + 1e-3, *np.zeros(98)]])
    output = reference.copy()
    output[0, :2] = reference[0, 1::-1]
    strict = Tolerance(max_rel=0.1, rms=2e-3, cosine=0.9, max_abs=1e-10, argmax=1.0)
    assert compare({"y": output}, {"y": reference}, None, strict).reasons == (
        "y: max_abs is 0.001, above 1e-10",
        "y: argmax is 0, below 1",
    )


def test_plain_data_holds_the_worst_of_all_outputs() -> None:
    reference = {"a": np.array([[3.0, 4.0]]), "b": np.array([[1.0, 0.0]])}
    output = {"a": np.array([[3.0, 4.5]]), "b": np.array([[0.0, 1.0]])}
    plain = compare(output, reference, None, DEFAULT_TOLERANCES["fp32"]).as_dict()
    assert plain["verdict"] == "fail"
    assert (plain["max_abs"], plain["cosine"], plain["argmax"]) == (1.0, 0.0, 0.0)
    assert [compared["name"] for compared in plain["outputs"]] == ["a", "b"]
