"""``IOBinding`` in the convention of ``onnxruntime.IOBinding``: host arrays on every backend, device arrays on GPUs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.compilation.compiled_graph import Bindings
from isorun.compilation.compiled_model import CompiledModel
from isorun.errors import InvalidFeeds, InvalidType
from isorun.models.feeds import FeedChecker
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray, adopt
from isorun.session import fork
from isorun.system import portable
from isorun.system.arguments import check_count, check_items, check_text

if TYPE_CHECKING:
    import numpy.typing as npt


class BoundOutput:
    """One result of a binding, with the methods of ``onnxruntime.OrtValue``."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def numpy(self) -> Any:
        """The result itself, not a copy.

        Raises:
            InvalidFeeds: it is in device memory.
        """
        if isinstance(self._value, DeviceArray):
            raise InvalidFeeds("This output is in device memory. Use value(), or bind the output to cpu")
        return self._value

    def value(self) -> Any:
        """The result in host or device memory: ``numpy.ndarray`` or ``DeviceArray``."""
        return self._value

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._value.shape)

    def device_name(self) -> str:
        """Where it is: ``cpu`` or ``cuda``."""
        return "cuda" if isinstance(self._value, DeviceArray) else "cpu"


class IOBinding:
    """Arrays bound to inputs and outputs once, then run many times with ``Session.run_with_iobinding``.

    A bound input is read in place at every run: change its contents, not the array. Created by
    ``Session.io_binding()``.
    """

    def __init__(self, model: CompiledModel, checker: FeedChecker) -> None:
        model.check_open()
        self._model = model
        self._checker = checker
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._bound: Bindings = {}
        self._overwritten: list[str] = []  # inputs that share memory with outputs
        self._results: list[Any] = []
        self._ran: dict[str, Any] = {}  # the outputs of the last run; other ones may be bound by now
        portable.notify_of_forks(self)

    def _forked(self) -> None:
        fork.keep_for_good(self._bound)

    def is_for(self, model: CompiledModel) -> bool:
        """Whether it runs that model."""
        return self._model is model

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input. A list is converted now; later changes to it are not seen."""
        check_text(name, "name")
        converted = self._checker.with_arrays({name: arr_on_cpu})
        self._inputs |= {name: arr_on_cpu} if type(arr_on_cpu) is np.ndarray else converted
        self._bound = {}

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory at an address to an input: C-contiguous, alive until the last run.

        Raises:
            BackendUnavailable: the address is on a GPU and the backend supports host memory only.
        """
        self.bind_cpu_input(name, self._array_at(name, device_type, device_id, element_type, shape, buffer_ptr))

    def bind_device_input(self, name: str, array: Any) -> None:
        """Bind an array in a GPU's memory to an input: anything with ``__cuda_array_interface__`` or ``__dlpack__``."""
        self._model.backend.refuse_device_arrays(f"the input {name!r}")
        self.bind_cpu_input(name, adopt({name: array})[name])

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in new memory or in memory at an address: C-contiguous, of the right size.

        Raises:
            BackendUnavailable: it is to lie on a GPU, and the backend writes host memory.
        """
        self._checker.outputs([name])
        if buffer_ptr is None:
            self._outputs[name] = ON_DEVICE if self._on_device(name, device_type, device_id) else None
        else:
            if element_type is None or shape is None:
                raise InvalidFeeds(f"Output {name!r} is bound to an address without an element type and a shape")
            self._outputs[name] = self._array_at(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._bound = {}

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs, self._bound = {}, {}

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs, self._bound = {}, {}
        self._results, self._ran = [], {}

    def synchronize_inputs(self) -> None:
        """Nothing to wait for in host memory."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for in host memory."""

    def get_outputs(self) -> list[BoundOutput]:
        """The results of the last run, in the order in which they were bound."""
        return [BoundOutput(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays that no later run changes.

        Raises:
            InvalidFeeds: a result is in device memory. Bind the output to cpu to have it copied.
        """
        arrays = [BoundOutput(value).numpy() for value in self._results]
        bound = [isinstance(target, np.ndarray) for target in self._ran.values()]  # others are new at every run
        return [array.copy() if keeps else array for array, keeps in zip(arrays, bound, strict=True)]

    def run(self) -> None:
        """Run once. ``Session.run_with_iobinding`` calls this.

        Raises:
            InvalidFeeds: the model does not accept what is bound, or no output is bound.
            BackendFailed: the runtime failed; its own error is the cause.
            IsorunError: the session is closed.
        """
        feeds = self._checker.check(self._inputs)  # at every run: their contents may have changed
        if not self._bound:
            self._overwritten = [name for name, feed in feeds.items() if self._is_overwritten(feed)]
        if self._overwritten:  # a runtime may write an output before it has read all of the input
            feeds = {**feeds, **{name: feeds[name].copy() for name in self._overwritten}}
        if any(feeds[name] is not value for name, value in self._inputs.items()):  # converted, as strings and lists are
            self._bound = {}
        if not self._outputs:
            raise InvalidFeeds("No output is bound. Call bind_output() for each output")
        self._results = self._model.run_bound(feeds, self._outputs, self._bound)
        self._ran = dict(self._outputs)

    def _is_overwritten(self, feed: Any) -> bool:
        """Whether an output may be written to the memory of a feed."""
        arrays = (target for target in self._outputs.values() if isinstance(target, np.ndarray))
        return isinstance(feed, np.ndarray) and any(np.may_share_memory(feed, array) for array in arrays)

    def _on_device(self, name: str, device_type: str, device_id: int) -> bool:
        if (device_type, device_id) == ("cpu", 0):
            return False
        if device_type != "cuda":
            raise InvalidFeeds(f"{name!r}: unknown device {device_type}:{device_id}. Use cpu:0 or cuda")
        self._model.backend.refuse_device_arrays(f"{name!r} on {device_type}:{device_id}")
        return True

    def _array_at(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        address: int,
    ) -> Any:
        try:
            dtype = np.dtype(element_type)
        except TypeError as error:
            raise InvalidType(f"{name!r}: element_type must be a dtype of NumPy, got {element_type!r}") from error
        if dtype.hasobject:
            raise InvalidFeeds(f"{name!r}: memory at an address holds numbers, got element_type={element_type!r}")
        check_items(shape, "shape", "sizes")
        shape = tuple(shape)
        shape = tuple(check_count(size, f"A size of shape={shape}", least=0) for size in shape)
        length = math.prod(shape) * dtype.itemsize
        address = check_count(address, "buffer_ptr", least=1 if length else 0)
        if address + length > sys.maxsize:
            raise InvalidFeeds(f"{name!r}: no address space has {length:,} bytes at {address:#x}, got shape={shape}")
        if self._on_device(name, device_type, device_id):
            return DeviceArray(address, shape, dtype, device_id)
        import ctypes

        memory = memoryview((ctypes.c_char * length).from_address(address))
        return np.ndarray(shape, dtype=dtype, buffer=memory)
