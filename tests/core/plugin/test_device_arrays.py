"""Arrays on a GPU, without one: memory of the host that says it lies on a device, by either protocol."""

import ctypes
from typing import Any

import numpy as np
import pytest

import isorun
import tiny
from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.plugin import device_arrays
from isorun.plugin.device_arrays import DeviceArray, adopt, is_on_device
from isorun.types import ModelInfo, TensorSpec


class ByInterface:
    """What CuPy, PyTorch and pycuda offer."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "version": 3,
            **changes,
        }


class ByDLPack:
    """What offers ``__dlpack__`` alone: NumPy's own capsule, its device rewritten."""

    def __init__(self, array: np.ndarray, number: int = 0) -> None:
        self.array, self.number, self.streams = array, number, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.number)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = device_arrays._DLTensor.from_address(pointer(capsule, b"dltensor"))
        tensor.device.type, tensor.device.id = self.__dlpack_device__()
        return capsule


class WithoutMemory(ByDLPack):
    def __dlpack_device__(self) -> tuple[int, int]:
        raise ValueError("Unknown device type meta for Dlpack")  # PyTorch's


ARRAY = np.arange(24, dtype=np.int64).reshape(2, 3, 4)


def test_a_value_on_a_device_that_dlpack_lacks_is_not_on_a_gpu():
    value = WithoutMemory(ARRAY)
    assert not is_on_device(value)
    assert adopt({"x": value}) == {"x": value}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("kind", [ByInterface, ByDLPack])
def test_adopts_device_arrays_without_copy(kind, dtype):
    array = ARRAY.astype(dtype)
    device_array = kind(array)
    assert is_on_device(device_array)
    taken = adopt({"x": device_array})["x"]
    assert (taken.address, taken.shape, taken.dtype) == (array.ctypes.data, array.shape, array.dtype)
    assert (taken.ndim, taken.size, taken.nbytes) == (3, 24, array.nbytes)
    assert taken.device_id == (0 if kind is ByDLPack else None), "the interface has no number"


def test_host_arrays_pass_through():
    feeds = {"array": ARRAY, "list": [1, 2], "number": 3}
    assert adopt(feeds) == feeds
    assert adopt(feeds)["array"] is ARRAY
    assert not any(map(is_on_device, feeds.values()))


def test_dlpack_uses_the_default_stream_and_keeps_the_owner():
    device_array = ByDLPack(ARRAY, number=1)
    taken = adopt({"x": device_array})["x"]
    assert device_array.streams == [device_arrays.DEFAULT_STREAM]
    assert (taken.stream, taken.device_id) == (device_arrays.DEFAULT_STREAM, 1)
    assert taken.owner[0] is device_array


def test_interface_without_stream_uses_the_default_stream():
    """PyTorch's is of version 2, and its tensors may still be computed."""
    assert adopt({"x": ByInterface(ARRAY, version=2)})["x"].stream == device_arrays.DEFAULT_STREAM

    class Both(ByDLPack, ByInterface):
        def __init__(self) -> None:
            ByInterface.__init__(self, ARRAY, version=2)
            ByDLPack.__init__(self, ARRAY)

    device_array = Both()
    assert adopt({"x": device_array})["x"].stream == device_arrays.DEFAULT_STREAM
    assert device_array.streams == [device_arrays.DEFAULT_STREAM], "its own work is ordered before that stream's"


def test_the_interface_keeps_the_producers_stream():
    assert adopt({"x": ByInterface(ARRAY, stream=77)})["x"].stream == 77
    assert adopt({"x": ByInterface(ARRAY)})["x"].stream is None


def test_adopts_its_own_arrays():
    first = adopt({"x": ByInterface(ARRAY, stream=5)})["x"]
    again = adopt({"x": first})["x"]
    assert again is first
    assert first.__cuda_array_interface__ == {
        "shape": (2, 3, 4),
        "typestr": "<i8",
        "data": (ARRAY.ctypes.data, False),
        "strides": None,
        "stream": 5,
        "version": 3,
    }


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (ByInterface(ARRAY, strides=(8, 16, 48)), r"'x' .* not C-contiguous .*\(1, 2, 6\).*\(2, 3, 4\)"),
        (ByDLPack(ARRAY.transpose(2, 1, 0)), "'x' on the device is not C-contiguous"),
        (ByInterface(ARRAY, mask=object()), "'x' is a masked array"),
    ],
)
def test_rejects_noncontiguous_and_masked_arrays(array, message):
    with pytest.raises(InvalidFeeds, match=message):
        adopt({"x": array})


def test_ignores_strides_of_single_elements():
    array = ARRAY[:1]
    strides = (1000, array.strides[1], array.strides[2])
    assert adopt({"x": ByInterface(array, strides=strides)})["x"].shape == (1, 3, 4)


def test_rejects_a_type_that_numpy_lacks():
    class BFloat16(ByDLPack):
        def __dlpack__(self, *, stream=None):
            capsule = super().__dlpack__(stream=stream)
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            tensor = device_arrays._DLTensor.from_address(pointer(capsule, b"dltensor"))
            tensor.dtype.code = 4
            return capsule

    with pytest.raises(InvalidFeeds, match=r"type that NumPy lacks .DLPack code 4, 16 bits"):
        adopt({"x": BFloat16(ARRAY.astype(np.int16))})


INFO = ModelInfo(
    inputs=(TensorSpec("ids", "tensor(int64)", ("batch", 4), bounds=(0, 9)),),
    outputs=(TensorSpec("out", "tensor(float)", ("batch",)),),
    opset=17,
)


def test_validates_device_feeds():
    checker = FeedChecker(INFO, device_arrays=True)
    good = ByInterface(np.full((2, 4), 99))  # an index outside the table: nobody can see it without a copy
    assert isinstance(checker.check({"ids": good})["ids"], DeviceArray)
    with pytest.raises(InvalidFeeds, match=r"int64 .*got int32"):
        checker.check({"ids": ByInterface(np.zeros((2, 4), np.int32))})
    with pytest.raises(InvalidFeeds, match="size 4 at dimension 1"):
        checker.check({"ids": ByInterface(np.zeros((2, 5), np.int64))})


@pytest.mark.parametrize("kind", [ByInterface, ByDLPack])
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_host_backend_rejects_gpu_feeds(bert, backend, kind):
    with isorun.Session(bert, backend=backend, threads=1) as session:
        feeds = {name: kind(array) for name, array in tiny.feeds().items()}
        with pytest.raises(InvalidFeeds, match=r"'\w+' is on a GPU"):
            session.run(None, feeds)


def test_host_backend_rejects_gpu_outputs(bert):
    with isorun.Session(bert, backend="ort-cpu", threads=1) as session:
        with pytest.raises(BackendUnavailable, match=r"device_outputs=True.*ort-cuda"):
            session.run(None, tiny.feeds(), device_outputs=True)
        with pytest.raises(BackendUnavailable, match="the input 'input_ids'"):
            session.io_binding().bind_device_input("input_ids", ByInterface(ARRAY))


def test_host_backend_rejects_gpu_arrays_with_numpy_attributes(bert):
    """CuPy's arrays have a NumPy dtype, ``ndim`` and ``shape``: they must not slip past the check."""

    class LikeCuPy(ByInterface):
        dtype, ndim, shape, size = np.dtype(np.int64), 2, (2, 5), 10

    with (
        isorun.Session(bert, backend="ort-cpu", threads=1, padding="auto") as session,
        pytest.raises(InvalidFeeds, match="is on a GPU"),
    ):
        session.run(None, {name: LikeCuPy(array) for name, array in tiny.feeds().items()})
