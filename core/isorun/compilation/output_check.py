"""The check of what a backend returns, at every run: arrays of the declared dtypes, ranks, fixed and batch sizes.

Exporters often declare the sizes of an example, which are corrected when a model is opened. Where the graph does not
tell others, because they depend on values (``NonZero``, ``Compress``) or on unknown operators, they are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from isorun.models.feeds import unequal_sizes
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import Feeds, ModelInfo, TensorSpec

_DOUBT = "; if other backends return the same, the model declares it wrongly"
_HOLDERS = ("seq", "optional")
_ndarray = np.ndarray  # a global name is found faster than an attribute


class OutputCheck:
    """Compares results with what the model declares; in fp64, outputs of any floating-point type are float64. A run
    like the one before it is compared with that alone."""

    def __init__(self, info: ModelInfo, precision: str = "fp32") -> None:
        tensors = [spec for spec in info.inputs if spec.type.startswith("tensor(")]  # others are lists or None
        inputs = {spec.shape[0]: spec.name for spec in reversed(tensors) if spec.shape}
        rows = [spec for spec in info.outputs if spec.shape and spec.name not in info.without_rows]
        batches = [spec.shape[0] for spec in rows if spec.shape and spec.shape[0] in inputs]
        batch = next((size for size in batches if isinstance(size, str)), None)
        self._batch_input = "" if batch is None else inputs[batch]
        self._inputs = info.inputs
        checked = [replace(spec, shape=None) if spec.name in info.unconfirmed else spec for spec in info.outputs]
        self._outputs = {
            spec.name: _declared(spec, precision, None if spec.name in info.without_rows else batch) for spec in checked
        }
        self._mask = info.mask or ""
        self._by_token = frozenset(info.token_outputs or ())
        self._last = _Run((), (), (), ())  # the last run that was right; replaced as a whole, since threads share it

    def problem(self, output_names: Sequence[str], results: Any, feeds: Feeds, *, on_device: bool = False) -> str:
        """What is wrong with results, which may be in device memory if ``on_device``, in words that follow "must
        return"; empty if they are right."""
        fed = feeds.get(self._batch_input)
        fed_shape = () if fed is None else fed.shape
        names, last_fed, dtypes, shapes = self._last
        if fed_shape == last_fed and output_names == names and type(results) is list and len(results) == len(names):
            for dtype, shape, result in zip(dtypes, shapes, results):  # noqa: B905 - the keyword takes 100 ns
                if type(result) is not _ndarray or result.dtype is not dtype or result.shape != shape:
                    break
            else:
                return ""
        return self._compare(output_names, results, feeds, fed_shape, on_device)

    def disagreement(self, feeds: Feeds) -> str:
        """What is wrong with feeds that differ in a size for which the model has one name; empty if they agree."""
        sizes: dict[str, tuple[str, int]] = {}
        for spec in self._inputs:
            shape = getattr(feeds.get(spec.name), "shape", ())  # a sequence has none
            for symbol, size in zip(spec.shape or (), shape, strict=False):
                if not isinstance(symbol, str):
                    continue
                name, first = sizes.setdefault(symbol, (spec.name, size))
                if size != first:
                    return unequal_sizes(name, spec.name, symbol, first, size)
        return ""

    def _compare(
        self, output_names: Sequence[str], results: Any, feeds: Feeds, fed_shape: tuple[int, ...], on_device: bool
    ) -> str:
        count = len(output_names)
        if type(results) is not list or len(results) != count:
            got = len(results) if type(results) is list else type(results).__name__
            return f"a list of {count} output{'' if count == 1 else 's'}, got {got}"
        batch, mask = fed_shape[0] if fed_shape else -1, feeds.get(self._mask)
        for name, result in zip(output_names, results, strict=True):
            if problem := self._outputs[name].problem(result, batch, self._batch_input, on_device):
                return f"for {name!r} {problem}"
            if mask is None or len(mask.shape) != 2 or name not in self._by_token:
                continue
            if result.shape[1:2] != mask.shape[1:] or mask.shape[0] not in (1, result.shape[0]):
                return f"for {name!r} a value for all tokens {mask.shape} of {self._mask!r}, got shape {result.shape}"
        if all(type(result) is np.ndarray for result in results):
            dtypes, shapes = zip(*((result.dtype, result.shape) for result in results), strict=True)
            self._last = _Run(tuple(output_names), fed_shape, dtypes, shapes)
        return ""


class _Run(NamedTuple):
    names: tuple[str, ...]
    fed: tuple[int, ...]  # the shape of the input with the batch
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]


class _Declared(NamedTuple):
    """What a model declares of an output, or of the elements of one.

    Attributes:
        kind: ``tensor``, ``seq``, ``optional``, ``map``, or another that is not checked.
        element: what a sequence or an optional value holds.
        dtype: ``None`` for a type that NumPy lacks, and for strings.
        is_text: whether it has strings.
        rank: ``None`` if unknown.
        sizes: each fixed axis and its size.
        batched: whether the first axis is as long as the batch.
    """

    kind: str
    element: _Declared | None
    dtype: np.dtype[Any] | None
    is_text: bool
    rank: int | None
    sizes: Sequence[tuple[int, int]]
    batched: bool

    def problem(self, result: Any, batch: int, batch_input: str, on_device: bool) -> str:
        """What is wrong with a result, for a batch size of -1 if it is unknown; empty if it is right."""
        if self.kind != "tensor":
            return self._problem_of_others(result)
        if type(result) is not np.ndarray and not (on_device and isinstance(result, DeviceArray)):
            return f"a numpy.ndarray, got {type(result).__name__}"
        shape = result.shape
        if self.dtype is not None and result.dtype != self.dtype:
            return f"an array of {self.dtype}, as the model declares, got {result.dtype}"
        if self.is_text and result.dtype.kind != "O":  # NumPy's own strings lose what ends in "\0"
            return f"an array of dtype object with strings, as the model declares, got {result.dtype}"
        if self.rank is not None and len(shape) != self.rank:
            expected = f"{self.rank} dimension{'' if self.rank == 1 else 's'}"
            return f"an array of {expected}, as the model declares, got shape {shape}{_DOUBT}"
        for axis, size in self.sizes:
            if shape[axis] != size:
                expected = f"size {size} at dimension {axis}"
                return f"an array of {expected}, as the model declares, got shape {shape}{_DOUBT}"
        if self.batched and batch >= 0 and shape[0] != batch:
            return f"an array of {batch} rows, as input {batch_input!r} has, got shape {shape}"
        if isinstance(result, np.ndarray) and not on_device and not result.flags.c_contiguous:
            return f"a C-contiguous array, got strides {result.strides} with shape {shape}"
        return ""

    def _problem_of_others(self, result: Any) -> str:
        if self.kind == "map" and type(result) is not dict:
            return f"a dict, got {type(result).__name__}"
        if self.element is None or (self.kind == "optional" and result is None):
            return ""
        if self.kind == "seq" and type(result) is not list:
            return f"a list, got {type(result).__name__}"
        for item in result if self.kind == "seq" else [result]:
            if problem := self.element.problem(item, -1, "", on_device=False):
                return f"a list whose items are each {problem}" if self.kind == "seq" else problem
        return ""


def _declared(spec: TensorSpec, precision: str, batch: str | None) -> _Declared:
    dtype, shape = spec.dtype, spec.shape
    kind, _, inner = spec.type.partition("(")
    element = _declared(TensorSpec(spec.name, inner[:-1], None), precision, None) if kind in _HOLDERS else None
    if precision == "fp64" and dtype is not None and dtype.kind == "f":
        dtype = np.dtype(np.float64)
    return _Declared(
        kind,
        element,
        dtype,
        spec.type == "tensor(string)",
        None if shape is None else len(shape),
        [(axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, int)],
        batch is not None and bool(shape) and shape is not None and shape[0] == batch,
    )
