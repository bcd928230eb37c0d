import dataclasses
import json
from types import MappingProxyType

import numpy as np
import pytest

from isorun.types import Provenance, TensorSpec

PROVENANCE = Provenance(
    backend="ort-cpu",
    device="A processor",
    precision="fp32",
    threads=2,
    operators={"CPUExecutionProvider": {"MatMul": 3, "Add": 2}},
    fused={"SelfAttention": 2},
    dialect="onnx",
    fingerprint="ab" * 32,
    cache="made",
    skipped=(("openvino", "it has no device 'gpu'. It runs on cpu."),),
    versions={"isorun": "0.1.0"},
)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("tensor(float)", np.float32),
        ("tensor(double)", np.float64),
        ("tensor(float16)", np.float16),
        ("tensor(int64)", np.int64),
        ("tensor(uint8)", np.uint8),
        ("tensor(bool)", np.bool_),
        ("tensor(complex64)", np.complex64),
    ],
)
def test_dtype_of_a_tensor(kind, dtype):
    assert TensorSpec("x", kind, ()).dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    "kind", ["tensor(bfloat16)", "tensor(string)", "tensor(int4)", "seq(tensor(float))", "optional(tensor(float))"]
)
def test_dtype_is_none_for_other_types(kind):
    assert TensorSpec("x", kind, None).dtype is None


def test_provenance_as_json_and_text():
    assert json.loads(json.dumps(PROVENANCE.as_dict()))["operators"] == PROVENANCE.operators
    frozen = dataclasses.replace(
        PROVENANCE, operators=MappingProxyType(PROVENANCE.operators), details=MappingProxyType({"x": (1,)})
    )
    assert json.loads(json.dumps(frozen.as_dict()))["details"] == {"x": [1]}
    text = str(PROVENANCE)
    for part in (
        "ort-cpu on A processor, 2 threads",
        "fp32",
        "5 on CPUExecutionProvider",
        "2 SelfAttention",
        "to onnx (made in the cache)",
        PROVENANCE.fingerprint,
        "isorun 0.1.0",
        "skipped      openvino",
    ):
        assert part in text
    assert "none" in str(dataclasses.replace(PROVENANCE, fused={}))
