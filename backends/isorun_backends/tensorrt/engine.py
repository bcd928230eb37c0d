"""An engine in device memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isorun.plugin import BackendFailed, ModelInfo, runtime_errors
from isorun_backends.nvidia.shape_profiles import Profile
from isorun_backends.tensorrt.builder import start
from isorun_backends.tensorrt.log import Log, logger


class Engine:
    """An engine and the profiles that it was built for.

    Attributes:
        tensors: the names of its inputs and outputs. An input that no output depends on may be missing.
    """

    def __init__(self, engine: Any, profiles: Sequence[Profile]) -> None:
        self._engine, self.profiles = engine, list(profiles)
        self._lock = threading.Lock()  # no TensorRT object may be used by two threads at once
        self.tensors = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}

    def create_context(self) -> Any:
        """A new context; ``None`` if there is no memory for it."""
        with self._lock:
            return self._engine.create_execution_context()

    def layers(self, format: Any) -> str:
        """TensorRT's description of the engine's layers."""
        with self._lock:
            return str(self._engine.create_engine_inspector().get_engine_information(format))


def load(name: str, trt: Any, content: bytes, folder: Path, info: ModelInfo, profiles: Sequence[Profile]) -> Engine:
    """Load an engine from its bytes, which were read from a folder.

    Raises:
        BackendUnavailable: TensorRT does not start on this machine.
        BackendFailed: TensorRT rejects the bytes, or the engine's dtypes are not the model's.
    """
    log = Log()
    with runtime_errors(f"{name} cannot load its engine"):
        runtime = start(name, lambda: trt.Runtime(logger(trt)))
        loaded = runtime.deserialize_cuda_engine(content)
        if loaded is None:
            raise BackendFailed(
                f"{name} cannot load the engine in {folder}: {log}. Delete the folder to build the engine again"
            ) from log.error()
        engine = Engine(loaded, profiles)
        for spec in [*info.inputs, *info.outputs]:
            if spec.name in engine.tensors and spec.dtype is not None:
                dtype = np.dtype(trt.nptype(loaded.get_tensor_dtype(spec.name)))
                if dtype != spec.dtype:
                    raise BackendFailed(f"{name}: {spec.name!r} is {dtype} in the engine and {spec.dtype} in the model")
    return engine
