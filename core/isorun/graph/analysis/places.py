"""Places in a row at which what is computed from lengths alone changes, however the places are computed: those of a
window of 30.5 tokens, or of one that is drawn around the square root of a distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, ancestors, data_inputs, is_constant

_SHORT, _LARGE = 8, 512
_FEW = 4  # different values of what is a mask, or steps

AtLength = Callable[[int], np.ndarray]


def changes(
    value: ir.Value, stop: frozenset[ir.Value], evaluated: Callable[[ir.Value, int], np.ndarray], longest: int
) -> set[int]:
    """The places, from the start or the end of a row, at which what a value reads of lengths alone changes.

    Args:
        value: of a mask, for example.
        stop: where its computation ends.
        evaluated: a value for rows of a length.
        longest: the greatest such length.
    """
    places: set[int] = set()
    for read in _of_lengths(value, stop):
        short = evaluated(read, _SHORT)
        if short.dtype.kind not in "bif":
            continue
        if short.size == 1:
            places.update(_of_number(partial(evaluated, read), longest))
        elif _SHORT in short.shape:
            length = longest if short.size <= _SHORT**2 else min(longest, _LARGE)  # with a copy for each row
            places.update(_of_rows(partial(evaluated, read), length))
    return places


def _of_lengths(value: ir.Value, stop: frozenset[ir.Value]) -> Iterator[ir.Value]:
    """What is computed from lengths alone and is the value itself, or is combined with what is not."""
    computed = [ancestor for ancestor in ancestors(value, stop) if not is_constant(ancestor) and ancestor not in stop]
    alone = {ancestor for ancestor in computed if ancestor.producer() is not None and not data_inputs(ancestor)}
    others = {ancestor for ancestor in computed if ancestor not in alone}
    for ancestor in alone:
        if ancestor is value or any(output in others for node in ancestor.consumers() for output in node.outputs):
            yield ancestor


def _of_number(at: AtLength, longest: int) -> Iterator[int]:
    """The lengths at which a number changes that has few values."""
    lengths, numbers = [_SHORT], {_SHORT: at(_SHORT).item()}
    while lengths[-1] < longest:
        length = min(2 * lengths[-1], longest)
        try:
            numbers[length] = at(length).item()
        except CannotEvaluate:  # beyond a table that the graph reads
            break
        lengths.append(length)
    if len({*numbers.values()}) > _FEW // 2:
        return  # a length, say
    for low, high in pairwise(lengths):
        first = numbers[low]
        if first == numbers[high]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if at(middle).item() == first else (low, middle)
        yield high


def _of_rows(at: AtLength, length: int) -> Iterator[int]:
    """The first place at which the first or the last line of an array changes; of few values, the farthest of all."""
    array = None
    while array is None and length > _SHORT:
        try:
            array = at(length)
        except CannotEvaluate:  # beyond a table that the graph reads
            length //= 2
    if array is None:
        return
    few = len(np.unique(array.reshape(-1)[: 1 << 16])) <= _FEW and len(np.unique(array)) <= _FEW
    for axis, size in enumerate(array.shape):
        if size != length:
            continue
        lines = np.moveaxis(array, axis, -1).reshape(-1, length)
        for line in (lines[0], lines[-1][::-1]):  # of the first token, and of the last one from its end
            places = np.flatnonzero(line[1:] != line[:-1]) + 1
            if places.size:
                yield int(places[0])
        if few:
            yield _farthest(array, axis, length)


def _farthest(array: np.ndarray, axis: int, length: int) -> int:
    """How far from the start, the end and its own token a line of an array changes at most: the first and the last line
    of a window with global tokens are those of global tokens, and show nothing of it."""
    lines = np.moveaxis(array, axis, -1)
    *indices, before = np.nonzero(lines[..., 1:] != lines[..., :-1])
    places = before + 1
    tokens = [index for index, size in zip(indices, lines.shape, strict=False) if size == length]
    distances = [places, length - places, *(np.abs(places - token) for token in tokens)]
    return int(np.min(distances, axis=0).max(initial=0))
