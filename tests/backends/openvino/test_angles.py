"""Rotations by position in bf16: places beyond those that bf16 tells apart have angles of their own."""

import numpy as np
import onnxruntime
import pytest

import exports
import isorun
from isorun.errors import BackendUnavailable

LENGTH = 700


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("label", ["glm-dynamo18-eager", "qwen3-dynamo18-eager"])
def test_rows_longer_than_256_tokens_are_rotated_by_place(label: str, precision: str) -> None:
    content = exports.content(label)
    untouched = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(5, 50, (1, LENGTH))
    feeds = {spec.name: ids if spec.name == "input_ids" else np.ones_like(ids) for spec in untouched.get_inputs()}
    expected = untouched.run(None, feeds)[0][0]
    calibration = [feeds] if precision == "int8" else None
    try:
        session = isorun.Session(content, "openvino", precision=precision, calibration=calibration)
    except BackendUnavailable as error:
        pytest.skip(error.reason)
    with session:
        result = session.run(None, feeds)[0][0]
    cosines = (result * expected).sum(-1) / np.linalg.norm(result, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() > 0.99
