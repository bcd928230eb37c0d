"""Assembling a batch from single requests, and splitting its outputs into single results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds, IsorunError
from isorun.models.feeds import FeedChecker, is_binary
from isorun.session.scheduling.calls import Request
from isorun.types import Feeds, ModelInfo, TensorSpec


class Collator:
    """Assembles batches from single requests of one model, and splits their outputs. A request for an output without
    rows is a batch of its own.

    If the graph is known not to see padding, requests of different lengths share a batch: shorter ones are padded on
    the right with zeros, masked. Otherwise only requests of equal shapes share one.
    """

    def __init__(self, info: ModelInfo, checker: FeedChecker) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._checker = checker
        self._info = info
        self._masks = info.masks
        self._mask = None if info.keeps_padding else info.mask
        mask_shape = self._specs[self._mask].shape if self._mask else None
        symbol = mask_shape[1] if mask_shape and len(mask_shape) == 2 else None
        self._by_token = {
            spec.name
            for spec in (*info.inputs, *info.outputs)
            if isinstance(symbol, str) and spec.shape and len(spec.shape) > 1 and spec.shape[1] == symbol
        } | set(info.token_outputs or ())
        self._without_rows = frozenset(info.without_rows)
        self._splits = {spec.name for spec in info.outputs if self._is_split(spec)}

    def _is_split(self, spec: TensorSpec) -> bool:
        """Whether it is known which part of a longer row's output is a request's: all of it, or one for each token."""
        if self._info.token_outputs is not None and spec.name in self._info.token_outputs:
            return True
        # What a fused model declares of other axes may be wrong: exporters give all outputs the same names.
        declared = self._info.token_outputs is None and spec.name in self._by_token
        sizes = list(spec.shape or ())[2 if declared else 1 :]
        return spec.shape is not None and all(isinstance(size, int) for size in sizes)

    def request(self, output_names: Sequence[str] | None, feeds: Feeds, *, shared: Callable[[], bool]) -> Request:
        """Validate a request.

        Args:
            output_names, feeds: as for ``Session.run``.
            shared: whether it may share a batch if it is a single row.

        Raises:
            InvalidFeeds: the model does not accept it.
        """
        outputs, feeds = self._checker.check_call(output_names, feeds)
        outputs, feeds = tuple(outputs), _copied(feeds)
        if self.is_single(feeds) and not self._without_rows.intersection(outputs) and shared():
            return self._single(outputs, feeds, keep_axis=True)
        no_batch = self._info.mixes_rows or self._without_rows.issuperset(outputs)  # the first axis may be of one item
        return Request(outputs, feeds, rows=1 if no_batch else self._rows(feeds))

    @staticmethod
    def is_single(feeds: Feeds) -> bool:
        """Whether validated feeds are arrays of one row each, and there are any."""
        return bool(feeds) and all(
            isinstance(array, np.ndarray) and array.shape[:1] == (1,) for array in feeds.values()
        )

    def row(self, output_names: Sequence[str] | None, feeds: Any) -> Request:
        """Validate a single request: every input without a batch axis, or with one of size 1. Raises ``InvalidFeeds``
        if the model does not accept it, or it has more than one row."""
        if not isinstance(feeds, Mapping):
            self._checker.check(feeds)  # raises, and says what is expected
        rows, keep_axis = {}, False
        for name, array in self._checker.with_arrays(feeds).items():
            spec = self._specs[name]
            if isinstance(array, np.ndarray) and spec.shape and array.ndim == len(spec.shape) - 1:
                rows[name] = array[None]
            else:
                rows[name], keep_axis = array, True
        outputs, checked = self._checker.check_call(output_names, rows)
        for name, array in checked.items():
            if not isinstance(array, np.ndarray):
                raise InvalidFeeds(
                    f"Input {name!r} is a {type(array).__name__}, which cannot be batched. Use Session.run"
                )
            if array.shape[:1] != (1,):
                raise InvalidFeeds(
                    f"Input {name!r}: a request must be a single row, got shape {list(array.shape)}. "
                    "Use Session.run for a batch"
                )
        if not checked or self._without_rows.intersection(outputs):
            return Request(tuple(outputs), _copied(checked), keep_axis=keep_axis or not checked)
        return self._single(tuple(outputs), _copied(checked), keep_axis=keep_axis)

    def _single(self, outputs: Sequence[str], feeds: Feeds, *, keep_axis: bool) -> Request:
        mask = None if self._mask is None else self._info.attended(feeds)
        # With other values in a mask, the model runs as given, and may see padding and other rows.
        as_given = any(not is_binary(feeds[name]) for name in self._masks if name in feeds)
        stretches = (
            mask is not None
            and not as_given
            and self._splits.issuperset(outputs)
            and bool(self._info.may_be_padded(mask).all())
        )
        length = mask.shape[1] if mask is not None else max(array.size for array in feeds.values())
        shapes = (
            (name, array.shape[2:] if stretches and name in self._by_token else array.shape[1:])
            for name, array in sorted(feeds.items())
        )
        kind = (*outputs, stretches, as_given, *shapes)
        return Request(outputs, feeds, kind, max(1, length), keep_axis=keep_axis)

    def batch(self, requests: Sequence[Request]) -> Feeds:
        """The feeds of a batch: new arrays (B, S, ...), S the longest request's length."""
        if len(requests) == 1:
            return requests[0].feeds
        longest = max(request.length for request in requests)
        feeds = {}
        for name, first in requests[0].feeds.items():
            arrays = [request.feeds[name] for request in requests]
            if name not in self._by_token or all(array.shape == first.shape for array in arrays):
                feeds[name] = np.concatenate(arrays)
                continue
            feeds[name] = np.full((len(arrays), longest, *first.shape[2:]), self._info.padding_of(name), first.dtype)
            for row, array in zip(feeds[name], arrays, strict=True):
                row[: array.shape[1]] = array[0]
        return feeds

    def split(self, outputs: list[Any], requests: Sequence[Request]) -> list[list[Any]]:
        """Each request's results, cut to its length; copies, so that they do not keep the batch alive."""
        names = requests[0].outputs
        if not requests[0].length:
            drops = () if requests[0].keep_axis else set(names) - self._without_rows
            return [[array[0, ...] if name in drops else array for name, array in zip(names, outputs, strict=True)]]
        for name, output in zip(names, outputs, strict=True):
            if not isinstance(output, np.ndarray) or output.ndim == 0 or output.shape[0] != len(requests):
                raise IsorunError(
                    f"Output {name!r} does not have one row for each of the {len(requests)} requests of a batch, so it "
                    "cannot be split. Leave it out of output_names, or use Session.run"
                )
        longest = max(request.length for request in requests)
        results = []
        for index, request in enumerate(requests):
            row: list[Any] = []
            for name, output in zip(names, outputs, strict=True):
                part = output[index : index + 1] if request.keep_axis else output[index, ...]  # a string stays an array
                if name in self._by_token and request.length < longest:
                    part = part[:, : request.length] if request.keep_axis else part[: request.length]
                row.append(part.copy())
            results.append(row)
        return results

    def sizes(self, feeds: Feeds) -> tuple[int, int, int]:
        """Rows, real tokens and padding of a batch."""
        mask = self._info.attended(feeds)
        if isinstance(mask, np.ndarray) and mask.ndim == 2:
            tokens = int(np.count_nonzero(mask))
            return len(mask), tokens, mask.size - tokens
        return self._rows(feeds), int(np.prod(_largest(feeds)[:2])), 0

    def _rows(self, feeds: Feeds) -> int:
        mask = self._info.attended(feeds)
        sizes = _largest(feeds) if mask is None else mask.shape
        return sizes[0] if len(sizes) > 1 else 1  # one axis may be a signal, whose numbers are no requests


def _largest(feeds: Feeds) -> tuple[int, ...]:
    """The shape of a feed with the most axes."""
    shapes: list[tuple[int, ...]] = [getattr(value, "shape", ()) for value in feeds.values()]
    return max(shapes, key=len, default=())


def _copied(feeds: Feeds) -> Feeds:
    """Feeds in memory of their own: the caller may use theirs for the next request."""
    return {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in feeds.items()}
