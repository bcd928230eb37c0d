"""The ONNX project's own backend tests, on any backend of isorun. In a test file::

    from onnx.backend.test import BackendTest
    from isorun.integrations import onnx_backend

    tests = BackendTest(onnx_backend.adapter("ort-cpu"), __name__).exclude("_cuda")
    globals().update(tests.test_cases)

They check operators one by one, about 2000, in every opset. A model with operators that the backend lacks is skipped,
with the reason. A test that fails shows a wrong output or another error.
"""

from __future__ import annotations

import tempfile
import unittest
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from isorun import Session
from isorun.errors import InvalidFeeds, UnsupportedModel
from isorun.plugin import registry
from isorun.types.devices import canonical

_DEVICES = {"CPU": "cpu", "CUDA": "cuda"}
_IR_VERSION = 8


class SessionBackend(Backend):
    """``onnx.backend.base.Backend`` for one backend of isorun, made by :func:`adapter`."""

    backend: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the backend declares the device: ``CPU`` is ``cpu``, ``CUDA`` and ``CUDA:1`` are ``cuda``."""
        return canonical(_device(device), registry.get(cls.backend).capabilities.devices) is not None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **arguments: Any) -> SessionRep:
        """Open a session on the model.

        Args:
            model: as for ``Session``.
            device: an ONNX device.
            arguments: for ``Session``; they override those of the adapter.

        Raises:
            unittest.SkipTest: the backend lacks an operator of the model.
            IsorunError: as for ``Session``.
        """
        try:
            session = Session(model, cls.backend, device=_device(device), **{**cls.arguments, **arguments})
        except UnsupportedModel as error:
            raise unittest.SkipTest(str(error)) from error
        return SessionRep(session)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **arguments: Any) -> tuple[Any, ...]:
        """Run a model once."""
        with cls.prepare(model, device, **arguments) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(  # type: ignore[override]  # the base annotates each keyword argument as a dict
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        *,
        opset_version: int = 17,
        **arguments: Any,
    ) -> tuple[Any, ...]:
        """Run one of ONNX's own operators.

        Args:
            node: the operator.
            inputs: an array for each of its named inputs.
            device: an ONNX device.
            outputs_info: dtype and shape of each output; ``None`` to infer them.
            opset_version: of the operator; the default is one that every runtime has supported for years.
            arguments: for ``Session``.
        """
        super().run_node(node, inputs, device, outputs_info, opset_version=opset_version)  # type: ignore[arg-type]
        arrays = [np.asarray(value) for value in inputs]
        named = zip(filter(None, node.input), arrays, strict=True)
        inputs_ = [helper.make_tensor_value_info(name, _element(array.dtype), array.shape) for name, array in named]
        if outputs_info is None:
            outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        else:
            named_outputs = zip(filter(None, node.output), outputs_info, strict=True)
            outputs = [
                helper.make_tensor_value_info(name, _element(dtype), shape) for name, (dtype, shape) in named_outputs
            ]
        graph = helper.make_graph([node], "node", inputs_, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_version)], ir_version=_IR_VERSION)
        return cls.run_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), arrays, device, **arguments)


class SessionRep(BackendRep):
    """A session as an ``onnx.backend.base.BackendRep``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names = [spec.name for spec in session.get_inputs()]
        weakref.finalize(self, session.close)  # the ONNX tests close nothing

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Run once.

        Args:
            inputs: an array for each input, in the model's order, or one array for a model of one input. Optional
                inputs at the end may be omitted.

        Raises:
            InvalidFeeds: there are more than the model has.
        """
        values = inputs if isinstance(inputs, Sequence) else [inputs]
        if len(values) > len(self._names):
            raise InvalidFeeds(f"The model has the inputs {', '.join(self._names)}, got {len(values)} arrays")
        feeds = dict(zip(self._names, map(_array, values), strict=False))
        return tuple(self._session.run(None, feeds))

    def __enter__(self) -> SessionRep:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


def adapter(backend: str, **arguments: Any) -> type[SessionBackend]:
    """An ONNX backend for one of isorun's.

    Args:
        backend: its name.
        arguments: for every ``Session``. The default ``cache_dir`` is a temporary folder.
    """
    name = f"{backend.title().replace('-', '')}Backend"
    adapter_class = type(name, (SessionBackend,), {"backend": backend, "arguments": arguments})
    if "cache_dir" not in arguments:
        folder = tempfile.TemporaryDirectory(prefix="isorun-onnx-")
        weakref.finalize(adapter_class, folder.cleanup)
        arguments["cache_dir"] = folder.name
    return adapter_class


def _device(device: str) -> str:
    kind = device.partition(":")[0]
    return _DEVICES.get(kind, kind.lower())


def _element(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _array(value: Any) -> Any:
    """The tests pass scalars as NumPy's scalars, which are not arrays."""
    return np.asarray(value) if isinstance(value, np.generic) else value
