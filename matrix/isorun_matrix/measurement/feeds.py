"""The feeds of a workload, and the files that keep them.

Timed feeds are called ``feeds-0``, ``feeds-1`` and so on. They differ, so that no runtime can answer from a cache of
the last call. If the model has a mask, one set for each kind of padding follows (``mask-right`` and so on), on which
only parity is checked: random tokens, or those of the texts, since int8 suits the texts that it was calibrated on and
not random tokens. ``varied-0`` and so on have other tokens than ``feeds-0`` and the same mask: a runtime that is
faster where ``feeds-0`` is repeated caches answers.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidModel, UnsupportedModel
from isorun.parity.samples import MASKS, lognormal_lengths, random_feeds, right_padded
from isorun.system.cache import write_atomically
from isorun.types import ModelInfo
from isorun_matrix.jobs import Workload

Arrays = dict[str, np.ndarray]
_TIMED = "feeds-"
_MASKED = "mask-"
_VARIED = 3
VARIED = tuple(f"varied-{index}" for index in range(_VARIED))
"""The names of the sets of feeds that differ from ``feeds-0`` in their tokens only."""


def make(workload: Workload, origin: str, info: ModelInfo) -> tuple[dict[str, Arrays], list[str]]:
    """All feeds of a workload, and remarks on them.

    Args:
        workload: what to make.
        origin: the file or folder of the model, beside which a tokenizer would be.
        info: the model's inputs.

    Raises:
        InvalidFeeds: the model does not accept such feeds.
    """
    notes: list[str] = []
    timed = _random(workload, info) if workload.texts is None else tokenized(workload, origin, info, notes)
    sets = {f"{_TIMED}{index}": feeds for index, feeds in enumerate(timed)}
    if workload.sequence is not None and info.mask is not None:
        for index, kind in enumerate(workload.masks):
            rng = np.random.default_rng([workload.seed, 1, index])
            mask = MASKS[kind](workload.batch, workload.sequence, rng)
            masked = _random_set(workload, info, rng, mask)
            sets[f"{_MASKED}{kind}"] = masked if workload.texts is None else _filled(masked, timed[0], info)
    return sets, notes


def varied(workload: Workload, info: ModelInfo, first: Arrays) -> dict[str, Arrays]:
    """Feeds with the mask of ``first`` and other values."""
    mask = None if info.mask is None else np.asarray(info.attended(first), np.int64)
    rng = np.random.default_rng([workload.seed, 2])
    return {name: _random_set(workload, info, rng, mask) for name in VARIED}


def timed(names: Iterable[str]) -> list[str]:
    """The names of the timed feeds."""
    return [name for name in names if name.startswith(_TIMED)]


def tokens(feeds: Mapping[str, np.ndarray], workload: Workload, info: ModelInfo) -> int | None:
    """The number of real tokens in a batch; ``None`` for a model without a sequence."""
    if info.mask is not None:
        return int(np.count_nonzero(info.attended(feeds)))
    return None if workload.sequence is None else workload.batch * workload.sequence


def save(path: Path, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write named groups of named arrays to one ``.npz`` file, atomically."""
    buffer = io.BytesIO()
    named = {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    np.savez(buffer, allow_pickle=False, **named)
    write_atomically(path, buffer.getvalue())


def load(path: Path, group: str) -> Arrays:
    """One group of a file that :func:`save` wrote. Raises ``InvalidFeeds`` if the file is missing or damaged."""
    prefix = f"{group}/"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = f"Remove the folder {path.parent} and use --resume"
        raise InvalidFeeds(f"{path} is missing or damaged ({reason}). {remedy}") from error


def _random(workload: Workload, info: ModelInfo) -> list[Arrays]:
    lengths = _lengths(workload)
    sets = []
    for index in range(workload.feeds):
        rng = np.random.default_rng([workload.seed, 0, index])
        mask = None
        if lengths is not None and workload.sequence is not None:
            rows = lengths[index * workload.batch : (index + 1) * workload.batch]
            mask = right_padded(rows, workload.sequence)
        sets.append(_random_set(workload, info, rng, mask))
    return sets


def _lengths(workload: Workload) -> npt.NDArray[np.int64] | None:
    """Real tokens in each row of all timed feeds; ``None`` where rows are full."""
    lengths, count = workload.lengths, workload.feeds * workload.batch
    if lengths == "full" or workload.sequence is None:
        return None
    if isinstance(lengths, list):
        return np.resize(np.array(lengths, dtype=np.int64), count)
    rng = np.random.default_rng(lengths["seed"])  # and not of the tokens: every run has the same lengths
    minimum, maximum = lengths["min"], lengths["max"] or workload.sequence
    if lengths["distribution"] == "uniform":
        return np.asarray(rng.integers(minimum, maximum, size=count, endpoint=True), dtype=np.int64)
    return lognormal_lengths(count, lengths["median"], lengths["sigma"], minimum, maximum, rng)


def _random_set(workload: Workload, info: ModelInfo, rng: np.random.Generator, mask: np.ndarray | None) -> Arrays:
    if mask is not None and info.mask is None:
        raise InvalidFeeds(
            f"Model {workload.model!r} has no input that is known to be a mask, so its rows are always full. "
            "Remove lengths from its shapes."
        )
    return random_feeds(info, rng, batch=workload.batch, sequence=workload.sequence, mask=mask, dims=workload.dims)


def _filled(masked: Arrays, texts: Arrays, info: ModelInfo) -> Arrays:
    """Feeds with the tokens of texts where the mask has real ones, row by row, cut or repeated to fit it."""
    attended = info.attended(masked)
    rows = [
        (np.flatnonzero(in_mask), np.flatnonzero(in_text))
        for in_mask, in_text in zip(attended, info.attended(texts), strict=True)
    ]
    filled = {name: array.copy() for name, array in masked.items()}
    for name, array in filled.items():
        if name != info.mask and array.shape == attended.shape:
            for row, (in_mask, in_text) in enumerate(rows):
                array[row, in_mask] = np.resize(texts[name][row, in_text], len(in_mask))
    return filled


def tokenized(workload: Workload, origin: str, info: ModelInfo, notes: list[str]) -> list[Arrays]:
    """The texts of a workload as its timed feeds, again from the first where there are too few. As an embedder reads
    them: with the model's prompt, and cut as its settings say.

    Args:
        workload, origin, info: as for :func:`make`.
        notes: receives a remark on each set of feeds with truncated texts.

    Raises:
        InvalidFeeds: the model does not accept them, or has no tokenizer.
    """
    from isorun.models.text_reader import TextReader
    from isorun.models.tokenizer import TruncationWarning, feeds_of

    texts = workload.texts or ()
    sets = []
    try:
        reader = TextReader(Path(origin), info)
        for index in range(workload.feeds):
            start = index * workload.batch
            rows = [texts[(start + row) % len(texts)] for row in range(workload.batch)]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TruncationWarning)
                encoded = reader.encode(rows, workload.sequence)
            notes += [f"{_TIMED}{index}: {warning.message}" for warning in caught]
            sets.append(feeds_of(encoded, info))
    except (InvalidModel, UnsupportedModel, InvalidFeeds) as error:
        raise InvalidFeeds(f"Model {workload.model!r} cannot be fed texts: {error}") from error
    return sets
