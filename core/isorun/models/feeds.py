"""Validation of feeds before a runtime sees them: names, types, shapes and ranges of values.

The check runs on every call, in about a microsecond for a model of three inputs; the message, with all its
detail, is put together only once something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds, did_you_mean
from isorun.plugin import device_arrays as device
from isorun.types import Feeds, ModelInfo, TensorSpec

_STRINGS = "tensor(string)"
_REMEMBERED = 4096  # combinations of shapes that need not be checked again


class FeedChecker:
    """Checks feeds against a model's inputs.

    Args:
        info: the model.
        device_arrays: whether feeds may lie on a GPU. The values of those that do are not looked at.
    """

    def __init__(self, info: ModelInfo, *, device_arrays: bool = False) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._device = device_arrays
        self._other = device.DeviceArray if device_arrays else np.ndarray
        self._required = frozenset(spec.name for spec in info.inputs if not spec.overridable)
        self._all_required = len(self._required) == len(self._specs)
        self._limits = info.limits
        self._outputs = frozenset(spec.name for spec in info.outputs)
        self._strings = [spec for spec in info.inputs if spec.type == _STRINGS]
        self._dtypes = [(spec.name, spec.dtype) for spec in info.inputs if spec.dtype]
        self._axes = [_axes(spec, info.limits) for spec in info.inputs if spec.dtype]
        self._known_shapes: set[tuple[tuple[int, ...], ...]] = set()
        # Runtimes differ in what they do with a token id or a mask value out of range: none reaches them.
        self._ranges = [_range(spec, info.mask) for spec in info.inputs if spec.bounds and spec.dtype]

    def check(self, feeds: Feeds) -> Feeds:
        """Reject feeds that the model does not accept.

        Returns:
            The feeds, with arrays of exactly the type ``numpy.ndarray`` in the place of lists, Python's numbers,
            NumPy's scalars and instances of subclasses (without a copy).

        Raises:
            InvalidFeeds: with the input by name, what was expected and what it got.
        """
        if self._device and isinstance(feeds, Mapping):
            feeds = device.adopt(feeds)
        if not self._fits(feeds):
            if isinstance(feeds, Mapping):
                feeds = self.with_arrays(feeds)
            self._refuse(feeds)
        if self._ranges:
            _check_ranges(self._ranges, feeds)
        if self._strings:
            made = {spec.name: _strings(spec, feeds[spec.name]) for spec in self._strings if spec.name in feeds}
            return {**feeds, **made}
        return feeds

    def _fits(self, feeds: Feeds) -> bool:
        """Whether every feed is an array of the right dtype and shape, as it nearly always is."""
        other = self._other
        shapes = []
        try:
            if len(feeds) != len(self._specs) and (self._all_required or not self._names_fit(feeds)):
                return False
            for name, dtype in self._dtypes:
                array = feeds[name]
                kind = type(array)
                # A subclass may override what the checks here are made of: numpy.ma hides values from max().
                if kind is not np.ndarray and kind is not other:
                    return False
                if array.dtype is not dtype and array.dtype != dtype:
                    return False
                shapes.append(array.shape)
        except (KeyError, AttributeError, TypeError):  # a name is missing, or the feeds are not a mapping
            return False
        return tuple(shapes) in self._known_shapes or self._shapes_fit(shapes)

    def _shapes_fit(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        sizes: dict[str, int] = {}
        for shape, (rank, fixed, named) in zip(shapes, self._axes, strict=True):
            if rank is None:
                continue
            if len(shape) != rank or any(shape[axis] != size for axis, size in fixed):
                return False
            for axis, symbol, most in named:
                size = shape[axis]
                if sizes.setdefault(symbol, size) != size or not 0 < size <= most:
                    return False
        if len(self._known_shapes) >= _REMEMBERED:
            self._known_shapes.clear()
        self._known_shapes.add(tuple(shapes))
        return True

    def check_outputs(self, names: Iterable[str]) -> None:
        """Refuse names of outputs that the model does not have."""
        for name in names:
            if name not in self._outputs:
                if isinstance(names, str):
                    raise InvalidFeeds(f"Names of outputs are a list; the string {names!r} came. Give [{names!r}]")
                raise InvalidFeeds(f"The model has no output {name!r}{did_you_mean(name, self._outputs)}")

    def _names_fit(self, feeds: Feeds) -> bool:
        return self._required <= feeds.keys() <= self._specs.keys()

    def with_arrays(self, feeds: Feeds) -> Feeds:
        """The feeds as plain arrays, where nothing is lost by the conversion; what cannot be converted stays.

        Raises:
            InvalidFeeds: a list that cannot be converted to an array, a number that the input's dtype does not hold,
                or an array with masked values.
        """
        made = dict(feeds)
        for name, value in feeds.items():
            spec = self._specs.get(name)
            if spec is not None and (spec.dtype is not None or spec.type == _STRINGS):
                made[name] = _as_array(spec, value)
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
            if spec.dtype is None:
                continue
            _refuse_array(spec, array, on_device=self._device)
            for axis, symbol in enumerate(spec.shape or ()):
                if isinstance(symbol, str) and symbol in self._limits:
                    _refuse_size(spec, array.shape, axis, symbol, self._limits[symbol], sizes)

    def _expected(self) -> str:
        return ", ".join(f"{name} {spec.type} {_shape(spec.shape)}" for name, spec in self._specs.items())


_Axes = tuple[int | None, list[tuple[int, int]], list[tuple[int, str, float]]]


def _axes(spec: TensorSpec, limits: Mapping[str, int | None]) -> _Axes:
    """The rank, the fixed sizes by axis, and the symbols by axis, each with its maximum."""
    shape = spec.shape or ()
    fixed = [(axis, size) for axis, size in enumerate(shape) if isinstance(size, int)]
    named = [
        (axis, symbol, float("inf") if limits[symbol] is None else float(limits[symbol] or 0))
        for axis, symbol in enumerate(shape)
        if isinstance(symbol, str) and symbol in limits
    ]
    return None if spec.shape is None else len(shape), fixed, named


class _Range(NamedTuple):
    """The values that an input accepts, and the unsigned type in which one comparison checks both ends."""

    name: str
    least: int
    most: int
    unsigned: np.dtype[Any] | None
    is_mask: bool


def _range(spec: TensorSpec, mask: str | None) -> _Range:
    assert spec.dtype is not None
    assert spec.bounds is not None
    least, most = spec.bounds
    signed = spec.dtype.kind == "i" and least == 0
    return _Range(spec.name, least, most, np.dtype(f"u{spec.dtype.itemsize}") if signed else None, spec.name == mask)


def _check_ranges(ranges: Iterable[_Range], feeds: Feeds) -> None:
    for name, least, most, unsigned, is_mask in ranges:
        array = feeds.get(name)
        if type(array) is not np.ndarray or not array.size:  # left out, on a GPU, or nothing to look at
            continue
        # argmax and item take a sixth of the time of max on a short array
        if unsigned is not None:  # in which a negative number is a large one
            positive = array.view(unsigned)
            if positive.item(positive.argmax()) <= most:
                continue
        elif least <= array.item(array.argmin()) and array.item(array.argmax()) <= most:
            continue
        place = tuple(np.argwhere(~((array >= least) & (array <= most)))[0])
        found = f"Input {name!r} holds {array[place]} at [{', '.join(map(str, place))}]"
        if is_mask:
            raise InvalidFeeds(
                f"{found}; a mask holds 1 for real tokens and 0 for padding, and backends disagree on other values. "
                "Convert it with (mask != 0).astype(mask.dtype)"
            )
        raise InvalidFeeds(f"{found}; the model's table takes {least} to {most}")


def _as_array(spec: TensorSpec, value: Any) -> Any:
    """See :meth:`FeedChecker.with_arrays`."""
    name, dtype = spec.name, spec.dtype
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise InvalidFeeds(
            f"Input {name!r} is a numpy.ma.MaskedArray with masked values, which runtimes would read as they are. "
            "Replace them with array.filled(...)"
        )
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if dtype is None or not isinstance(value, list | tuple | bool | int | float):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidFeeds(f"Input {name!r} is a list that makes no array: {error}") from error
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return value
    with np.errstate(over="ignore"):
        made = array.astype(dtype)
    lost = made != array if dtype.kind in "iu" else np.isfinite(array) & ~np.isfinite(made)
    if (unfit := array[lost]).size:
        raise InvalidFeeds(f"Input {name!r} is {dtype}, which does not hold {unfit[0]}")
    return made


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
