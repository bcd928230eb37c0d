"""``IOBinding`` in the convention of ``onnxruntime.IOBinding``, for arrays in host memory, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.backend import Binding, Executable
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.feeds import FeedChecker

if TYPE_CHECKING:
    import numpy.typing as npt


class BoundOutput:
    """One result of a binding, in the shape of ``onnxruntime.OrtValue``."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def numpy(self) -> Any:
        """The result itself, not a copy."""
        return self._value

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._value.shape)

    def device_name(self) -> str:
        """Where it is: always ``cpu`` so far."""
        return "cpu"


class IOBinding:
    """Arrays tied to inputs and outputs once, then run many times with ``Session.run_with_iobinding``.

    An array that is bound as an input is read in place at every run: change its contents, not the array.
    Made by ``Session.io_binding()``, which says how to tell whether the session is open and, where runs take turns,
    whose turn it is.
    """

    def __init__(
        self,
        executable: Executable,
        checker: FeedChecker,
        check_open: Callable[[], None],
        turns: AbstractContextManager[Any] | None,
    ) -> None:
        self._executable = executable
        self._checker = checker
        self._check_open = check_open
        self._turns = nullcontext() if turns is None else turns
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._bound: Binding | None = None
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input."""
        self._inputs[name] = arr_on_cpu
        self._bound = None

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory at an address to an input: C-contiguous, alive until the last run."""
        self.bind_cpu_input(name, _array_at(name, device_type, device_id, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in new memory or in memory at an address: C-contiguous, of the right size."""
        self._checker.check_outputs([name])
        if buffer_ptr is None:
            _host_only(name, device_type, device_id)
            self._outputs[name] = None
        else:
            if element_type is None or shape is None:
                raise InvalidFeeds(f"Output {name!r} is bound to an address without an element type and a shape")
            self._outputs[name] = _array_at(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._bound = None

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs, self._bound = {}, None

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs, self._bound = {}, None

    def synchronize_inputs(self) -> None:
        """Nothing to wait for in host memory."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for in host memory."""

    def get_outputs(self) -> list[BoundOutput]:
        """The results of the last run, in the order in which they were bound."""
        return [BoundOutput(value) for value in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays. They are in host memory already: nothing is copied."""
        return self._results

    def run(self) -> None:
        """Run once. ``Session.run_with_iobinding`` calls this.

        Raises:
            InvalidFeeds: what is bound is not what the model takes, or no output is bound.
            BackendFailed: the runtime failed; its own error is the cause.
            IsorunError: the session is closed.
        """
        self._check_open()
        self._checker.check(self._inputs)  # at every run: their contents may have changed
        if not self._outputs:
            raise InvalidFeeds("No output is bound: call bind_output with the name of each that is wanted")
        try:
            with self._turns:
                self._check_open()  # it may have been closed while this waited
                if self._bound is None:
                    self._bound = self._executable.bind(dict(self._inputs), dict(self._outputs))
                self._results = self._bound.run()
        except BackendFailed:
            self._check_open()  # another thread may have closed it meanwhile
            self._checker.explain(self._inputs)
            raise


def _host_only(name: str, device_type: str, device_id: int) -> None:
    if (device_type, device_id) != ("cpu", 0):
        raise InvalidFeeds(f"{name!r} is bound to {device_type}:{device_id}; the backends so far take cpu:0")


def _array_at(
    name: str,
    device_type: str,
    device_id: int,
    element_type: npt.DTypeLike,
    shape: Sequence[int],
    address: int,
) -> np.ndarray:
    _host_only(name, device_type, device_id)
    dtype = np.dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    import ctypes

    memory = memoryview((ctypes.c_char * size).from_address(address))
    return np.ndarray(tuple(shape), dtype=dtype, buffer=memory)
