"""The ONNX project's own node tests: whatever raw ONNX Runtime makes of one, a session on ort-cpu makes the same.

All of them are marked long; every 25th runs in the gate.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
    if not isinstance(given, TensorProto):
        return given
    array = numpy_helper.to_array(given)
    if array.dtype in _PLAIN:
        return array
    from onnxruntime import OrtValue

    raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(raw, given.data_type)


def raw_runs(model: onnx.ModelProto) -> Iterator[Any]:
    """Raw ONNX Runtime's session; none where it does not take the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        yield onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (whatever it is, the raw runtime does not pass, and so nothing is asked of the session)
        return


def agree(names: range) -> tuple[int, list[str]]:
    """How many runs the raw runtime passes, and those in which the session does otherwise."""
    passed, wrong = 0, []
    for number in names:
        case = cases()[number]
        for raw in raw_runs(case.model):
            for inputs, _ in case.data_sets:
                try:
                    feeds = feeds_of(case.model, inputs)
                    expected = raw.run(None, feeds)
                except Exception:  # noqa: BLE001 (as above)
                    continue
                passed += 1
                if said := difference(case.model, feeds, expected, raw):
                    wrong.append(f"{case.name}: {said}")
    return passed, wrong


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


def test_every_25th():
    passed, wrong = agree(range(0, len(cases()), 25))
    assert wrong == []
    assert passed > 40, "enough of them run to mean something"


@pytest.mark.long
def test_all():
    passed, wrong = agree(range(len(cases())))
    assert wrong == []
    assert passed > 1300
