"""An engine in the device's memory, with what isorun has to know of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isorun.errors import BackendFailed
from isorun.plugin.backend import runtime_errors
from isorun.types import ModelInfo
from isorun_backends.tensorrt.api import Context, Engine, Module
from isorun_backends.tensorrt.builder import started
from isorun_backends.tensorrt.log import Log, logger
from isorun_backends.tensorrt.profiles import Profile


class Loaded:
    """An engine and the profiles that it was built for.

    Attributes:
        tensors: the names of its inputs and outputs. An input that no output depends on need not be one.
    """

    def __init__(self, engine: Engine, profiles: Sequence[Profile]) -> None:
        self._engine, self.profiles = engine, list(profiles)
        self._lock = threading.Lock()  # no object of TensorRT's is to be used by two threads at once
        self.tensors = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}

    def context(self) -> Context | None:
        """A new context; ``None`` where there is no memory for it."""
        with self._lock:
            return self._engine.create_execution_context()

    def description(self, form: Any) -> str:
        """What it is made of, in TensorRT's words."""
        with self._lock:
            return self._engine.create_engine_inspector().get_engine_information(form)


def load(name: str, trt: Module, content: bytes, folder: Path, info: ModelInfo, profiles: Sequence[Profile]) -> Loaded:
    """Load an engine's bytes, which were read from a folder.

    Raises:
        BackendUnavailable: TensorRT does not start here.
        BackendFailed: TensorRT does not take them, or reads and writes other types than the model says.
    """
    log = Log()
    with runtime_errors(f"{name} cannot load its engine"):
        runtime = started(name, lambda: trt.Runtime(logger(trt)))
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise BackendFailed(
                f"{name} cannot load the engine in {folder}: {log}. Delete it to have it built anew"
            ) from log.error()
        found = Loaded(engine, profiles)
        for spec in [*info.inputs, *info.outputs]:
            if spec.name in found.tensors and spec.dtype is not None:
                dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(spec.name)))
                if dtype != spec.dtype:
                    raise BackendFailed(f"{name} made {spec.name!r} {dtype}; in the model it is {spec.dtype}")
    return found
