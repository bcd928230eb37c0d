"""The ONNX project's own node tests: whatever raw ONNX Runtime makes of one, a session on ort-cpu makes the same.

All of them are marked long; every 25th runs in the gate.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import isorun

_PLAIN = {
    np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", "O")
}

_NOT_IN_NUMPY = (
    "bfloat16",
    "float8e4m3fnuz",
    "float8e5m2",
    "int4",
    "int2",
)  # ONNX Runtime cannot hand such an output out as an array


@cache
def cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes some expected values by overflowing on purpose
        return load_model_tests(kind="node")


def feeds_of(model: onnx.ModelProto, data: list[Any]) -> dict[str, Any]:
    """Arrays where NumPy has the type; ONNX Runtime's own values for the rest, as its users feed them."""
    return {value.name: _fed(given) for value, given in zip(model.graph.input, data, strict=False)}


def _fed(given: Any) -> Any:
    if isinstance(given, np.generic):  # the tests have scalars so; ONNX Runtime takes arrays alone
        return np.asarray(given)
    if not isinstance(given, TensorProto):
        return given
    array = numpy_helper.to_array(given)
    if array.dtype in _PLAIN:
        return array
    from onnxruntime import OrtValue

    raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(raw, given.data_type)


def runtime_errors() -> tuple[type[Exception], ...]:
    """What raw ONNX Runtime raises where it does not take a model or a feed."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)


@dataclass
class Tally:
    """What became of the runs: how many the raw runtime passes, those in which the session does otherwise, and why
    the raw runtime did not pass the others."""

    passed: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def compare(numbers: range) -> Tally:
    import onnxruntime

    options, tally = onnxruntime.SessionOptions(), Tally()
    options.log_severity_level = 4
    for number in numbers:
        case = cases()[number]
        content = case.model.SerializeToString()
        try:
            raw = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except runtime_errors() as error:
            tally.refused.append(f"{case.name}: {error}")
            continue
        if lacking := [each.type for each in raw.get_outputs() if any(kind in each.type for kind in _NOT_IN_NUMPY)]:
            tally.refused.append(f"{case.name}: NumPy has no {' or '.join(lacking)}")
            continue
        for inputs, _ in case.data_sets:
            feeds = feeds_of(case.model, inputs)
            try:
                expected = raw.run(None, feeds)
            except runtime_errors() as error:
                tally.refused.append(f"{case.name}: {error}")
                continue
            tally.passed += 1
            if said := difference(case.model, feeds, expected, raw):
                tally.wrong.append(f"{case.name}: {said}")
    return tally


def difference(model: onnx.ModelProto, feeds: dict[str, Any], expected: list[Any], raw: Any) -> str:
    try:
        with isorun.Session(model, backend="ort-cpu") as session:
            found = session.run(None, feeds)
            for ours, theirs in ((session.get_inputs(), raw.get_inputs()), (session.get_outputs(), raw.get_outputs())):
                assert [(v.name, v.type) for v in ours] == [(v.name, v.type) for v in theirs]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert type(one) is type(other)
            np.testing.assert_equal(one, other)
    except (isorun.IsorunError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def assert_alike(numbers: range) -> None:
    """The session does as the raw runtime in every run that this passes, which are most."""
    tally = compare(numbers)
    assert tally.wrong == []
    # ONNX Runtime trails ONNX: the rest are operators and types that it does not have yet.
    assert tally.passed > 0.7 * len(numbers), "\n".join(tally.refused)


def test_every_25th():
    assert_alike(range(0, len(cases()), 25))


@pytest.mark.long
def test_all():
    assert_alike(range(len(cases())))
