"""Validation of feeds before a runtime sees them: names, types, shapes and ranges of values.

The check runs on every call and takes about a microsecond for a model of three inputs; a detailed message is composed
only for invalid feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds, did_you_mean
from isorun.models.feed_values import check, convert, shape_in_words
from isorun.plugin import device_arrays as device
from isorun.types import Feeds, ModelInfo, TensorSpec

_OPTIONAL = "optional("
_MAX_KNOWN_SHAPES = 4096  # combinations of shapes that passed before
# Negative numbers are large ones as unsigned.
_UNSIGNED = {np.dtype(f"{sign}int{bits}"): np.dtype(f"uint{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}


def refuse_options(run_options: object) -> None:
    """Reject an argument that exists for compatibility with ONNX Runtime only."""
    if run_options is not None:
        raise InvalidFeeds(f"run_options is not supported (got {type(run_options).__name__}). Pass None.")


class FeedChecker:
    """Checks feeds against a model's inputs.

    Args:
        info: the model.
        device_arrays: whether feeds may be on a GPU. The values of those are not checked.
        any_mask: whether masks may have other values than 0 and 1, with which the model runs as given.
    """

    def __init__(self, info: ModelInfo, *, device_arrays: bool = False, any_mask: bool = False) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._device = device_arrays
        self._array_type = device.DeviceArray if device_arrays else np.ndarray
        self._optional = [spec.name for spec in info.inputs if spec.type.startswith(_OPTIONAL)]
        self._required = frozenset(spec.name for spec in info.required).difference(self._optional)
        self._all_required = len(self._required) == len(self._specs)
        self._limits = info.limits
        self._outputs = tuple(info.output_names)
        self._are_arrays = all(spec.dtype for spec in info.inputs)
        self._dtypes = [(spec.name, spec.dtype) for spec in info.inputs if spec.dtype]
        self._axes = [_axes(spec, info.limits) for spec in info.inputs if spec.dtype]
        self._known_shapes: set[tuple[tuple[int, ...], ...]] = set()
        # Runtimes differ in their behaviour for token ids out of range, so they are rejected here.
        masks = {info.mask, *info.masks}
        bounded = [spec for spec in info.inputs if spec.bounds and spec.dtype and not (any_mask and spec.name in masks)]
        paddings = {name: info.padding_of(name) for name in masks if name}
        self._ranges = [_range(spec, paddings.get(spec.name)) for spec in bounded]

    def check(self, feeds: Feeds) -> Feeds:
        """The feeds of :meth:`check_call`, for all outputs."""
        return self.check_call(None, feeds)[1]

    def check_call(self, output_names: Sequence[str] | None, feeds: Feeds) -> tuple[Sequence[str], Feeds]:
        """Reject a call that the model does not accept.

        Returns:
            The names of the outputs, of all for none. The feeds of :meth:`with_arrays` and :meth:`with_omitted`.

        Raises:
            InvalidFeeds: the message names the input, the expected value and the actual one.
        """
        if self._device and isinstance(feeds, Mapping):
            feeds = device.adopt(feeds)
        if not self._fits(feeds):
            if isinstance(feeds, Mapping):
                feeds = self.with_arrays(feeds)
            self._refuse(feeds)
        if self._ranges:
            _check_ranges(self._ranges, feeds)
        return self.outputs(output_names), self.with_omitted(feeds)

    def with_omitted(self, feeds: Feeds) -> Feeds:
        """Valid feeds, with ``None`` for optional inputs that are omitted."""
        return {**dict.fromkeys(self._optional), **feeds} if self._optional else feeds

    def _fits(self, feeds: Feeds) -> bool:
        """Whether every feed is an array of the right dtype and shape: the fast path."""
        if not self._are_arrays:
            return False
        array_type = self._array_type
        shapes = []
        try:
            if len(feeds) != len(self._specs) and (
                self._all_required or not self._required <= feeds.keys() <= self._specs.keys()
            ):
                return False
            for name, dtype in self._dtypes:
                array = feeds[name]
                kind = type(array)
                # A subclass may override methods that the checks use: numpy.ma hides values from max().
                if kind is not np.ndarray and kind is not array_type:
                    return False
                if array.dtype is not dtype and array.dtype != dtype:
                    return False
                shapes.append(array.shape)
        except (KeyError, AttributeError, TypeError):  # a name is missing, or the feeds are not a mapping
            return False
        return tuple(shapes) in self._known_shapes or self._shapes_fit(shapes)

    def _shapes_fit(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        sizes: dict[str, int] = {}
        for shape, (rank, fixed, symbolic) in zip(shapes, self._axes, strict=True):
            if rank is None:
                continue
            if len(shape) != rank or any(shape[axis] != size for axis, size in fixed):
                return False
            for axis, symbol, maximum in symbolic:
                size = shape[axis]
                if sizes.setdefault(symbol, size) != size or not 0 < size <= maximum:
                    return False
        if len(self._known_shapes) >= _MAX_KNOWN_SHAPES:
            self._known_shapes.clear()
        self._known_shapes.add(tuple(shapes))
        return True

    def outputs(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the outputs of a call, of all for none: a tuple, which no plugin can change.

        Raises:
            InvalidFeeds: they are no list or tuple, or the model has no such output.
        """
        if names is None:
            return self._outputs
        if not isinstance(names, list | tuple):
            instead = f"the string {names!r}. Pass [{names!r}]" if isinstance(names, str) else type(names).__name__
            raise InvalidFeeds(f"Output names must be a list or a tuple, got {instead}")
        for name in names:
            if name not in self._outputs:
                raise InvalidFeeds(f"The model has no output {name!r}{did_you_mean(name, self._outputs)}")
        return tuple(names) or self._outputs

    def with_arrays(self, feeds: Feeds) -> Feeds:
        """Feeds as :func:`isorun.models.feed_values.convert` returns them.

        Raises:
            InvalidFeeds: the model has no such input; or as that function.
        """
        converted = {}
        for name, value in feeds.items():
            spec = self._specs.get(name)
            if spec is None:
                raise InvalidFeeds(f"The model has no input {name!r}{did_you_mean(str(name), self._specs)}")
            converted[name] = convert(spec, value)
        return converted

    def _refuse(self, feeds: Feeds) -> None:
        """Raise an error for feeds that are invalid after :meth:`with_arrays`; return for valid ones (an optional input
        was omitted)."""
        if not isinstance(feeds, Mapping):
            raise InvalidFeeds(
                f"Feeds must be a mapping of input names to arrays, got {type(feeds).__name__}. "
                f"The model's inputs: {self._expected()}"
            )
        if missing := sorted(self._required - feeds.keys()):
            raise InvalidFeeds(f"No feed for {', '.join(map(repr, missing))}. The model's inputs: {self._expected()}")
        sizes: dict[str, tuple[int, str]] = {}
        for name, array in feeds.items():
            spec = self._specs[name]
            check(spec, array, on_device=self._device)
            if spec.dtype is None:
                continue
            for axis, symbol in enumerate(spec.shape or ()):
                if isinstance(symbol, str) and symbol in self._limits:
                    _check_size(spec, array.shape, axis, symbol, self._limits[symbol], sizes)

    def _expected(self) -> str:
        return ", ".join(f"{name} {spec.type} {shape_in_words(spec.shape)}" for name, spec in self._specs.items())


_Axes = tuple[int | None, list[tuple[int, int]], list[tuple[int, str, float]]]


def _axes(spec: TensorSpec, limits: Mapping[str, int | None]) -> _Axes:
    """The rank, the fixed sizes by axis, and the symbols by axis, each with its maximum."""
    shape = spec.shape or ()
    fixed = [(axis, size) for axis, size in enumerate(shape) if isinstance(size, int)]
    symbolic = [
        (axis, symbol, float("inf") if limits[symbol] is None else float(limits[symbol] or 0))
        for axis, symbol in enumerate(shape)
        if isinstance(symbol, str) and symbol in limits
    ]
    return None if spec.shape is None else len(shape), fixed, symbolic


class _Range(NamedTuple):
    """The range of values that an input accepts, the unsigned type in which one comparison checks both ends, and of a
    mask, what it holds at padding."""

    name: str
    minimum: int
    maximum: int
    unsigned: np.dtype[Any] | None
    padding: int | None


def _range(spec: TensorSpec, padding: int | None) -> _Range:
    assert spec.dtype is not None
    assert spec.bounds is not None
    minimum, maximum = spec.bounds
    signed = spec.dtype.kind == "i" and minimum == 0
    return _Range(spec.name, minimum, maximum, np.dtype(f"u{spec.dtype.itemsize}") if signed else None, padding)


def is_binary(mask: np.ndarray) -> bool:
    """Whether a mask holds no other values than 0 and 1."""
    unsigned = _UNSIGNED.get(mask.dtype)
    if unsigned is None or not mask.size:
        return bool(((mask == 0) | (mask == 1)).all())
    positive = mask.view(unsigned)
    return bool(positive.item(positive.argmax()) <= 1)


def not_binary(name: str, mask: np.ndarray, padding: int, reason: str = "") -> InvalidFeeds:
    """The error for a mask that holds other values than 0 and 1, of which one means padding."""
    index = tuple(np.argwhere((mask != 0) & (mask != 1))[0])
    reason = reason and f" {reason}"
    return InvalidFeeds(
        f"Input {name!r} must contain {1 - padding} for real tokens and {padding} for padding{reason}, "
        f"got {mask[index]} at [{', '.join(map(str, index))}]"
    )


def _check_ranges(ranges: Iterable[_Range], feeds: Feeds) -> None:
    for name, minimum, maximum, unsigned, padding in ranges:
        array = feeds.get(name)
        if type(array) is not np.ndarray or not array.size:  # omitted, on a GPU, or empty
            continue
        if padding is not None:
            if not is_binary(array):
                raise not_binary(name, array, padding)
            continue
        # argmax and item take a sixth of the time of max on a short array
        if unsigned is not None:  # negative numbers are large ones as unsigned
            positive = array.view(unsigned)
            if positive.item(positive.argmax()) <= maximum:
                continue
        elif minimum <= array.item(array.argmin()) and array.item(array.argmax()) <= maximum:
            continue
        index = tuple(np.argwhere(~((array >= minimum) & (array <= maximum)))[0])
        raise InvalidFeeds(
            f"Input {name!r} must contain indices {_interval(minimum, maximum, array)} (the model's embedding table), "
            f"got {array[index]} at [{', '.join(map(str, index))}]. Check that the tokenizer belongs to this model"
        )


def _interval(minimum: int, maximum: int, array: np.ndarray) -> str:
    """Bounds in words. An end that the type has is none."""
    limits = np.iinfo(array.dtype)
    if minimum <= limits.min:
        return f"of at most {maximum}"
    return f"of at least {minimum}" if maximum >= limits.max else f"from {minimum} to {maximum}"


def _check_size(
    spec: TensorSpec,
    shape: tuple[int, ...],
    axis: int,
    symbol: str,
    maximum: int | None,
    sizes: dict[str, tuple[int, str]],
) -> None:
    size = shape[axis]
    if size == 0:
        raise InvalidFeeds(f"Input {spec.name!r} is empty: its {symbol} dimension is 0 in {shape_in_words(shape)}")
    if maximum is not None and size > maximum:
        raise InvalidFeeds(
            f"Input {spec.name!r} must have a {symbol} of at most {maximum} (the model's position table), got {size}. "
            "Truncate the input"
        )
    first, first_name = sizes.setdefault(symbol, (size, spec.name))
    if first != size:
        raise InvalidFeeds(unequal_sizes(first_name, spec.name, symbol, first, size))


def unequal_sizes(first_name: str, name: str, symbol: str, first: int, size: int) -> str:
    """The error for two dimensions, of one input or two, that differ and for which the model has one name."""
    if first_name == name:
        return (
            f"Input {name!r} has dimensions of {first} and {size} that must be equal, since the model names both "
            f"{symbol!r}. If they may differ, give them different names in the model"
        )
    return f"Inputs {first_name!r} and {name!r} must have the same {symbol}, got {first} and {size}"
