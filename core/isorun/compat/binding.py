"""``IOBinding(session)`` with OrtValues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime.capi import onnxruntime_inference_collection as raw

from isorun.compat import values
from isorun.session import io_binding
from isorun.session.session import Session
from isorun.types import TensorSpec

if TYPE_CHECKING:
    import numpy.typing as npt


class IOBinding(io_binding.IOBinding):
    """``onnxruntime.IOBinding`` of a session of isorun. For a session of ONNX Runtime, it creates ONNX Runtime's own.

    Args:
        session: the session.
    """

    def __new__(cls, session: Any) -> Any:
        return super().__new__(cls) if isinstance(session, Session) else raw.IOBinding(session)

    def __init__(self, session: Session) -> None:
        super().__init__(session._model, session._checker)
        self._kept: dict[str, Any] = {}
        self._targets: dict[str, tuple[Any, raw.OrtValue]] = {}  # the memory of values, and the values that own it

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike | int,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        super().bind_input(name, device_type, device_id, _dtype(element_type), shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | int | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        super().bind_output(name, device_type, device_id, _dtype(element_type), shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: raw.OrtValue) -> None:
        """Bind a value to an input. Its memory is read in place at every run."""
        array = values.to_array(name, ortvalue)
        if array is ortvalue:
            self.bind_device_input(name, array)
        else:
            self.bind_cpu_input(name, array)
        self._kept[name] = ortvalue

    def bind_ortvalue_output(self, name: str, ortvalue: raw.OrtValue) -> None:
        """Bind an output to the memory of a value."""
        dtype = TensorSpec(name, ortvalue.data_type(), None).dtype
        device, index = ortvalue.device_name(), ortvalue.__dlpack_device__()[1]
        self.bind_output(name, device, index, dtype, ortvalue.shape(), ortvalue.data_ptr())
        self._targets[name] = self._outputs[name], ortvalue

    def get_outputs(self) -> list[Any]:
        """The results of the last run: an ``OrtValue`` for each in host memory, a ``BoundOutput`` on a GPU."""
        results: list[Any] = []
        for (name, target), output in zip(self._ran.items(), super().get_outputs(), strict=True):
            bound, value = self._targets.get(name, (None, None))
            if output.device_name() != "cpu":
                results.append(output)
            elif value is not None and bound is target:
                results.append(value)
            else:
                results.append(values.to_ort_value(name, output.value()))
        return results


def _dtype(element_type: Any) -> Any:
    """A NumPy dtype; ONNX Runtime also accepts the numbers of ONNX's types."""
    if not isinstance(element_type, int):
        return element_type
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
