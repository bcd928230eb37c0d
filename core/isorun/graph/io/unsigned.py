"""Constants of uint32 and uint64 that are not stored as raw data.

OpenVINO (2026.4.1) reads every second one of them in 32 bits, and tract (0.23.9) fails.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from isorun.graph.io import structure

_KINDS = (onnx.TensorProto.UINT32, onnx.TensorProto.UINT64)


def as_raw_data(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model that stores them as raw data: the same object if it does.

    Args:
        proto: the model, whose structure has been checked; it is unchanged.
    """
    if not any(_is_typed(tensor) for tensor in structure.tensors(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in structure.tensors(copy):
        if _is_typed(tensor):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return copy


def _is_typed(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _KINDS and bool(tensor.uint64_data)
