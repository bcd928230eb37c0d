"""Assembling a batch from single requests, and splitting its outputs into single results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds, IsorunError
from isorun.models.feeds import FeedChecker, is_binary
from isorun.types import ModelInfo


@dataclass(order=True, slots=True)
class Request:
    """One request, ordered by length, then by arrival."""

    length: int
    number: int
    feeds: dict[str, np.ndarray] = field(compare=False)  # each (1, ...)
    kind: tuple[Any, ...] = field(compare=False)  # requests of one kind can share a batch
    keep_axis: bool = field(compare=False)  # whether results have a batch axis
    arrived: float = field(compare=False)  # time.monotonic()
    future: Future[list[Any]] = field(compare=False)


class Layout:
    """Assembles batches from single requests of one model, and splits their outputs.

    If the graph is known not to see padding, requests of different lengths share a batch: shorter ones are padded on
    the right with zeros, mask 0. Otherwise only requests of equal shapes share one.

    Args:
        info: the model.
        output_names: the outputs to return; ``None`` for all.
        alone: no requests share a batch.
    """

    def __init__(self, info: ModelInfo, output_names: Sequence[str] | None, *, alone: bool = False) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._checker = FeedChecker(info, any_mask=True)
        self._masks = info.masks
        self._alone = alone
        if output_names:
            self._checker.check_outputs(output_names)
        self._outputs = list(output_names or [spec.name for spec in info.outputs])
        self._mask = None if info.keeps_padding else info.mask
        mask_shape = self._specs[self._mask].shape if self._mask else None
        symbol = mask_shape[1] if mask_shape and len(mask_shape) == 2 else None
        self._by_token = {
            spec.name
            for spec in (*info.inputs, *info.outputs)
            if isinstance(symbol, str) and spec.shape and len(spec.shape) > 1 and spec.shape[1] == symbol
        } | set(info.token_outputs or ())

    @property
    def outputs(self) -> list[str]:
        """The outputs in each result."""
        return self._outputs

    def request(self, feeds: Any, number: int, arrived: float) -> Request:
        """Validate a request: every input without a batch axis, or with one of size 1.

        Raises:
            InvalidFeeds: the model does not accept it, or it has more than one row.
        """
        if not isinstance(feeds, Mapping):
            self._checker.check(feeds)  # raises, and says what is expected
        rows, keep_axis = {}, False
        for name, array in self._checker.with_arrays(feeds).items():
            spec = self._specs.get(name)
            if isinstance(array, np.ndarray) and spec is not None and spec.shape and array.ndim == len(spec.shape) - 1:
                rows[name] = array[None]
            else:
                rows[name], keep_axis = array, True
        self._checker.check(rows)
        for name, array in rows.items():
            if not isinstance(array, np.ndarray):
                raise InvalidFeeds(
                    f"Input {name!r} is a {type(array).__name__}, which cannot be batched. Use Session.run"
                )
            if array.shape[:1] != (1,):
                raise InvalidFeeds(
                    f"Input {name!r}: a request must be a single row, got shape {list(array.shape)}. "
                    "Use Session.run for a batch"
                )
        mask = None if self._mask is None else rows.get(self._mask)
        # With other values in a mask, the model runs as given, and may see padding and other rows.
        given = any(not is_binary(rows[name]) for name in self._masks if name in rows)
        # A fully masked row attends to all its positions equally: padding would change it.
        stretches = mask is not None and bool(np.count_nonzero(mask)) and not given
        length = mask.shape[1] if mask is not None else max(array.size for array in rows.values())
        kind = (stretches, given, *(self._rest(name, array, stretches) for name, array in sorted(rows.items())))
        kind = (number,) if self._alone else kind
        return Request(length, number, rows, kind, keep_axis, arrived, Future())

    def _rest(self, name: str, array: np.ndarray, stretches: bool) -> tuple[Any, ...]:
        """The part of an input's shape that must be equal throughout a batch."""
        return (name, array.shape[2:] if stretches and name in self._by_token else array.shape[1:])

    def batch(self, requests: Sequence[Request]) -> dict[str, np.ndarray]:
        """The feeds of a batch: new arrays (B, S, ...), S the longest request's length."""
        if len(requests) == 1:
            return requests[0].feeds
        longest = max(request.length for request in requests)
        made = {}
        for name, first in requests[0].feeds.items():
            arrays = [request.feeds[name] for request in requests]
            if name not in self._by_token or all(array.shape == first.shape for array in arrays):
                made[name] = np.concatenate(arrays)
                continue
            made[name] = np.zeros((len(arrays), longest, *first.shape[2:]), first.dtype)
            for row, array in zip(made[name], arrays, strict=True):
                row[: array.shape[1]] = array[0]
        return made

    def split(self, outputs: Sequence[Any], requests: Sequence[Request]) -> list[list[Any]]:
        """Each request's results, cut to its length; copies, so that they do not keep the batch alive."""
        for name, output in zip(self._outputs, outputs, strict=True):
            if not isinstance(output, np.ndarray) or output.ndim == 0 or output.shape[0] != len(requests):
                raise IsorunError(
                    f"Output {name!r} does not have one row for each of the {len(requests)} requests of a batch, so it "
                    "cannot be split. Leave it out of output_names, or use Session.run"
                )
        results = []
        for index, request in enumerate(requests):
            row: list[Any] = []
            for name, output in zip(self._outputs, outputs, strict=True):
                part = output[index : index + 1] if request.keep_axis else output[index]
                if name in self._by_token:
                    part = part[:, : request.length] if request.keep_axis else part[: request.length]
                row.append(part.copy())
            results.append(row)
        return results
