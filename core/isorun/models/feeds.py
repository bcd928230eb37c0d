"""Checking feeds before a runtime sees them: names, types, shapes and, where asked, indices.

The check runs on every call, in about a microsecond for a model of three inputs; the message, with all its
detail, is put together only once something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds, did_you_mean
from isorun.plugin import device_arrays as device
from isorun.types import Feeds, ModelInfo, TensorSpec

_STRINGS = "tensor(string)"


class FeedChecker:
    """Checks feeds against a model's inputs.

    Args:
        info: the model.
        indices: whether to look at every index, for a runtime that does not do so itself.
        device_arrays: whether feeds may lie on a GPU. Indices that do are not looked at.
    """

    def __init__(self, info: ModelInfo, *, indices: bool, device_arrays: bool = False) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._device = device_arrays
        # A scalar of NumPy's is left to the runtime: some take it.
        self._arrays = (np.ndarray, np.generic, *((device.DeviceArray,) if device_arrays else ()))
        self._required = frozenset(spec.name for spec in info.inputs if not spec.overridable)
        self._all_required = len(self._required) == len(self._specs)
        self._limits = info.limits
        self._outputs = frozenset(spec.name for spec in info.outputs)
        self._strings = [spec for spec in info.inputs if spec.type == _STRINGS]
        self._plan = [_plan(spec, info.limits) for spec in info.inputs if spec.dtype and spec.shape is not None]
        self._bounded = [spec for spec in info.inputs if spec.bounds]
        self._checked_indices = self._bounded if indices else []

    def check(self, feeds: Feeds) -> Feeds:
        """Refuse feeds that the model does not take.

        Returns:
            The feeds, with arrays in the place of lists and Python's numbers, which ONNX Runtime takes too.

        Raises:
            InvalidFeeds: with the input by name, what was expected and what came.
        """
        if self._device and isinstance(feeds, Mapping):
            feeds = device.adopt(feeds)
        arrays = self._arrays
        try:
            if len(feeds) != len(self._specs) and (self._all_required or not self._names_fit(feeds)):
                self._refuse(feeds)
            sizes: dict[str, int] = {}
            for name, dtype, rank, fixed, named in self._plan:
                array = feeds[name]
                if array.dtype != dtype or array.ndim != rank or not isinstance(array, arrays):
                    self._refuse(feeds)
                shape = array.shape
                for axis, size in fixed:
                    if shape[axis] != size:
                        self._refuse(feeds)
                for axis, symbol, most in named:
                    size = shape[axis]
                    if sizes.setdefault(symbol, size) != size or not 0 < size <= most:
                        self._refuse(feeds)
        except (KeyError, AttributeError, TypeError):  # a name is missing, or a feed is no array
            if isinstance(feeds, Mapping):
                feeds = self.with_arrays(feeds)
            self._refuse(feeds)
        if self._checked_indices:
            self._check_indices(self._checked_indices, feeds)
        if self._strings:
            made = {spec.name: _strings(spec, feeds[spec.name]) for spec in self._strings if spec.name in feeds}
            return {**feeds, **made}
        return feeds

    def explain(self, feeds: Feeds) -> None:
        """Look at feeds that have passed :meth:`check` for what the runtime may have stumbled on.

        Raises:
            InvalidFeeds: a scalar that is no array, or an index outside its table.
        """
        self._refuse(feeds)
        self._check_indices(self._bounded, feeds)

    def check_outputs(self, names: Iterable[str]) -> None:
        """Refuse names of outputs that the model does not have."""
        for name in names:
            if name not in self._outputs:
                if isinstance(names, str):
                    raise InvalidFeeds(f"Names of outputs are a list; the string {names!r} came. Give [{names!r}]")
                raise InvalidFeeds(f"The model has no output {name!r}{did_you_mean(name, self._outputs)}")

    def _names_fit(self, feeds: Feeds) -> bool:
        return self._required <= feeds.keys() <= self._specs.keys()

    def _check_indices(self, specs: Sequence[TensorSpec], feeds: Feeds) -> None:
        for spec in specs:
            array = feeds.get(spec.name)
            assert spec.bounds is not None
            least, most = spec.bounds
            if array is None or array.size == 0 or not isinstance(array, np.ndarray):
                continue
            # argmax and item take a sixth of the time of max on a short array
            inside = least <= array.item(array.argmin()) and array.item(array.argmax()) <= most
            if not inside:
                position = np.argwhere((array < least) | (array > most))[0]
                place = ", ".join(map(str, position))
                raise InvalidFeeds(
                    f"Input {spec.name!r} holds {array[tuple(position)]} at [{place}]; "
                    f"the model's table takes {least} to {most}"
                )

    def with_arrays(self, feeds: Feeds) -> Feeds:
        """Arrays for lists and Python's numbers, which have no dtype of their own, where nothing is lost by it.

        Raises:
            InvalidFeeds: a list that makes no array, or an integer that the input's dtype does not hold.
        """
        made = dict(feeds)
        for name, value in feeds.items():
            spec = self._specs.get(name)
            if spec is not None and spec.dtype is not None and isinstance(value, list | tuple | bool | int | float):
                try:
                    array = np.asarray(value)
                except ValueError as error:
                    raise InvalidFeeds(f"Input {name!r} is a list that makes no array: {error}") from error
                if np.can_cast(array.dtype, spec.dtype, "same_kind"):
                    made[name] = array.astype(spec.dtype)
                    if spec.dtype.kind in "iu" and (wrapped := array[made[name] != array]).size:
                        raise InvalidFeeds(f"Input {name!r} is {spec.dtype}, which does not hold {wrapped[0]}")
        return made

    def _refuse(self, feeds: Feeds) -> None:
        """Say what is wrong with the feeds; return where nothing is (an optional input was left out)."""
        if not isinstance(feeds, Mapping):
            raise InvalidFeeds(
                f"Feeds are a mapping of input names to arrays; a {type(feeds).__name__} came. "
                f"The model's inputs: {self._expected()}"
            )
        for name in feeds:
            if name not in self._specs:
                raise InvalidFeeds(f"The model has no input {name!r}{did_you_mean(str(name), self._specs)}")
        if missing := sorted(self._required - feeds.keys()):
            raise InvalidFeeds(f"No feed for {', '.join(map(repr, missing))}. The model's inputs: {self._expected()}")
        sizes: dict[str, tuple[int, str]] = {}
        for name, array in feeds.items():
            spec = self._specs[name]
            if spec.dtype is None or spec.shape is None:
                continue
            _refuse_array(spec, array, on_device=self._device)
            for axis, symbol in enumerate(spec.shape):
                if isinstance(symbol, str) and symbol in self._limits:
                    _refuse_size(spec, array.shape, axis, symbol, self._limits[symbol], sizes)

    def _expected(self) -> str:
        return ", ".join(f"{name} {spec.type} {_shape(spec.shape)}" for name, spec in self._specs.items())


_Plan = tuple[str, np.dtype[Any], int, list[tuple[int, int]], list[tuple[int, str, float]]]


def _plan(spec: TensorSpec, limits: Mapping[str, int | None]) -> _Plan:
    assert spec.dtype is not None
    assert spec.shape is not None
    fixed = [(axis, size) for axis, size in enumerate(spec.shape) if isinstance(size, int)]
    named = [
        (axis, symbol, float("inf") if limits[symbol] is None else float(limits[symbol] or 0))
        for axis, symbol in enumerate(spec.shape)
        if isinstance(symbol, str) and symbol in limits
    ]
    return spec.name, spec.dtype, len(spec.shape), fixed, named


def _refuse_array(spec: TensorSpec, array: Any, *, on_device: bool) -> None:
    if not isinstance(array, np.ndarray) and not (on_device and isinstance(array, device.DeviceArray)):
        if device.is_on_device(array):
            raise InvalidFeeds(
                f"Input {spec.name!r} lies on a GPU, and this backend reads host memory: copy it first (CuPy's "
                "array.get(), PyTorch's tensor.cpu().numpy()), or take a backend for GPUs"
            )
        raise InvalidFeeds(
            f"Input {spec.name!r} takes a numpy.ndarray of {spec.dtype}; "
            f"a {type(array).__name__} came. numpy.asarray(..., dtype=numpy.{spec.dtype}) makes one"
        )
    if array.dtype != spec.dtype:
        raise InvalidFeeds(
            f"Input {spec.name!r} takes {spec.dtype} ({spec.type}); {array.dtype} came. "
            f"array.astype(numpy.{spec.dtype}) converts it"
        )
    _refuse_shape(spec, array)


def _strings(spec: TensorSpec, given: Any) -> np.ndarray:
    """An array of objects that are strings, as ONNX Runtime gives them.

    It reads bytes beyond their end, and makes strings of whatever else comes.

    Raises:
        InvalidFeeds: there are others among them, or the shape is not the input's.
    """
    array = np.asarray(given, dtype=object) if isinstance(given, list | tuple | str) else given
    if not isinstance(array, np.ndarray):
        raise InvalidFeeds(f"Input {spec.name!r} takes a numpy.ndarray of strings; a {type(array).__name__} came")
    if array.dtype.kind == "S":
        raise InvalidFeeds(
            f"Input {spec.name!r} takes strings; bytes came. numpy.char.decode(array) makes them strings"
        )
    array = array.astype(object, copy=False)
    if others := [each for each in array.flat if not isinstance(each, str)]:
        raise InvalidFeeds(f"Input {spec.name!r} takes strings; {others[0]!r} is a {type(others[0]).__name__}")
    _refuse_shape(spec, array)
    return array


def _refuse_shape(spec: TensorSpec, array: np.ndarray | device.DeviceArray) -> None:
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        raise InvalidFeeds(
            f"Input {spec.name!r} takes {len(spec.shape)} dimensions {_shape(spec.shape)}; "
            f"{array.ndim} came {_shape(array.shape)}"
        )
    for axis, size in enumerate(spec.shape):
        if isinstance(size, int) and array.shape[axis] != size:
            raise InvalidFeeds(
                f"Input {spec.name!r} takes {size} at dimension {axis} of {_shape(spec.shape)}; "
                f"{array.shape[axis]} came {_shape(array.shape)}"
            )


def _refuse_size(
    spec: TensorSpec,
    shape: tuple[int, ...],
    axis: int,
    symbol: str,
    most: int | None,
    sizes: dict[str, tuple[int, str]],
) -> None:
    size = shape[axis]
    if size == 0:
        raise InvalidFeeds(f"Input {spec.name!r} is empty: its {symbol} dimension is 0 in {_shape(shape)}")
    if most is not None and size > most:
        raise InvalidFeeds(
            f"Input {spec.name!r} has a {symbol} of {size}; the model goes up to {most} (its table of positions)"
        )
    first, other = sizes.setdefault(symbol, (size, spec.name))
    if first != size:
        raise InvalidFeeds(
            f"Inputs {other!r} and {spec.name!r} disagree on {symbol}: {first} and {size}. All must have the same"
        )


def _shape(shape: Sequence[int | str | None] | None) -> str:
    return "of any shape" if shape is None else "[" + ", ".join("?" if s is None else str(s) for s in shape) + "]"
