"""The check of what a backend returns, at every run: an array of the declared dtype, rank, fixed and batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isorun.plugin.device_arrays import DeviceArray
from isorun.types import Feeds, ModelInfo, TensorSpec

_ndarray = np.ndarray  # a global name is found faster than an attribute
_MAX_SHAPES = 4096  # that an output remembers


class OutputCheck:
    """Compares results with what the model declares.

    Args:
        info: the model.
        precision: the session's; in fp64, outputs of any floating-point type are float64.
    """

    def __init__(self, info: ModelInfo, precision: str = "fp32") -> None:
        inputs = {spec.shape[0]: spec.name for spec in reversed(info.inputs) if spec.shape}
        batches = [spec.shape[0] for spec in info.outputs if spec.shape and spec.shape[0] in inputs]
        batch = next((size for size in batches if isinstance(size, str)), None)
        self._batch_input = "" if batch is None else inputs[batch]
        outputs = [_Output(spec, precision, batch, self._batch_input) for spec in info.outputs]
        self._outputs = {output.name: (output.dtype, output.known.get, output.problem) for output in outputs}

    def problem(self, output_names: Sequence[str], results: Sequence[Any], feeds: Feeds) -> str:
        """What is wrong with the first wrong result, in words that follow the backend's name; empty if all are right.

        Args:
            output_names: the requested outputs.
            results: what the backend returned for them: as many.
            feeds: what it was given.
        """
        fed = feeds.get(self._batch_input)
        batch = -1 if fed is None else fed.shape[0]
        for name, result in zip(output_names, results, strict=True):
            dtype, known, problem = self._outputs[name]
            # Most runs return what an earlier one did.
            if type(result) is not _ndarray or result.dtype is not dtype or known(result.shape) != batch:
                message = problem(result, batch)
                if message:
                    return message
        return ""


class _Output:
    """One output: what the model declares of it, and the shapes that were right.

    Attributes:
        name: the output's.
        dtype: ``None`` for a type that NumPy lacks, and for strings.
        known: shapes that were right, each with the batch size of that run; -1 if unknown.
    """

    def __init__(self, spec: TensorSpec, precision: str, batch: int | str | None, batch_input: str) -> None:
        shape = spec.shape
        self.known: dict[tuple[int, ...], int] = {}
        self.dtype = spec.dtype
        if precision == "fp64" and self.dtype is not None and self.dtype.kind == "f":
            self.dtype = np.dtype(np.float64)
        self.name = spec.name
        self._is_tensor = spec.type.startswith("tensor(")
        self._rank = None if shape is None else len(shape)
        self._sizes = [(axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, int)]
        self._batch_input = batch_input if shape and batch is not None and shape[0] == batch else ""

    def problem(self, result: Any, batch: int) -> str:
        """What is wrong with a result, for a batch size of -1 if it is unknown; empty if it is right."""
        if not self._is_tensor:
            return ""
        if not isinstance(result, np.ndarray | DeviceArray):
            return f"output {self.name!r} must be a numpy.ndarray, got {type(result).__name__}"
        shape = result.shape
        if self.dtype is not None and result.dtype != self.dtype:
            return f"output {self.name!r} must be {self.dtype}, as the model declares, got {result.dtype}"
        if self._rank is not None and len(shape) != self._rank:
            expected = f"{self._rank} dimension{'' if self._rank == 1 else 's'}"
            return f"output {self.name!r} must have {expected}, as the model declares, got shape {shape}"
        for axis, size in self._sizes:
            if shape[axis] != size:
                return f"output {self.name!r} must have size {size} at dimension {axis}, got shape {shape}"
        if self._batch_input and batch >= 0 and shape[0] != batch:
            return f"output {self.name!r} must have {batch} rows, as input {self._batch_input!r} has, got shape {shape}"
        if len(self.known) >= _MAX_SHAPES:
            self.known.clear()
        self.known[shape] = batch
        return ""
