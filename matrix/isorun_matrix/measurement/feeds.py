"""The feeds of a workload: the timed ones and those that parity alone is checked on, and how they are kept.

The timed feeds differ from one another, so that no runtime answers from what it saw last; they are called
``feeds-0``, ``feeds-1`` and so on. Then comes one set for each kind of mask, called ``mask-right`` and so on, if
the model takes a mask.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidModel
from isorun.parity.samples import MASKS, lognormal_lengths, random_feeds, right_padded
from isorun.system.cache import write_atomically
from isorun.types import ModelInfo

Arrays = dict[str, np.ndarray]
_TIMED = "feeds-"
_MASKED = "mask-"


def make(job: Mapping[str, Any], info: ModelInfo) -> tuple[dict[str, Arrays], list[str]]:
    """All feeds of a workload, and what is worth knowing about them.

    Args:
        job: a :class:`isorun_matrix.execution.plan.Workload` with the model's ``origin``.
        info: what is known of the model.

    Raises:
        InvalidFeeds: the model cannot be fed like that.
    """
    notes: list[str] = []
    timed = _of_texts(job, info, notes) if job["texts"] is not None else _random(job, info)
    found = {f"{_TIMED}{index}": feeds for index, feeds in enumerate(timed)}
    if job["sequence"] is not None and info.mask is not None:
        for index, kind in enumerate(job["masks"]):
            rng = np.random.default_rng([job["seed"], 1, index])
            mask = MASKS[kind](job["batch"], job["sequence"], rng)
            found[f"{_MASKED}{kind}"] = _made_up(job, info, rng, mask)
    return found, notes


def timed(names: Iterable[str]) -> list[str]:
    """Those of a workload's feeds that are timed."""
    return [name for name in names if name.startswith(_TIMED)]


def tokens(feeds: Mapping[str, np.ndarray], job: Mapping[str, Any], mask: str | None) -> int | None:
    """How many real tokens are in one batch; ``None`` for a model without a sequence."""
    if mask is not None:
        return int(np.count_nonzero(feeds[mask]))
    return None if job["sequence"] is None else job["batch"] * job["sequence"]


def save(path: Path, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write named groups of named arrays to one ``.npz`` file, whole or not at all."""
    buffer = io.BytesIO()
    named = {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    np.savez(buffer, allow_pickle=False, **named)
    write_atomically(path, buffer.getvalue())


def load(path: Path, group: str) -> Arrays:
    """One group of a file that :func:`save` wrote.

    Raises:
        InvalidFeeds: the file is missing or damaged.
    """
    prefix = f"{group}/"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile, zlib.error) as error:
        raise InvalidFeeds(f"{path} is damaged ({error}). Remove the folder {path.parent} and use --resume") from error


def _random(job: Mapping[str, Any], info: ModelInfo) -> list[Arrays]:
    lengths = _lengths(job)
    found = []
    for index in range(job["feeds"]):
        rng = np.random.default_rng([job["seed"], 0, index])
        mask = None
        if lengths is not None:
            mask = right_padded(lengths[index * job["batch"] : (index + 1) * job["batch"]], job["sequence"])
        found.append(_made_up(job, info, rng, mask))
    return found


def _lengths(job: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """Real tokens in each row of all timed feeds; ``None`` where rows are full."""
    wanted, count = job["lengths"], job["feeds"] * job["batch"]
    if wanted == "full":
        return None
    if isinstance(wanted, list):
        return np.resize(np.array(wanted, dtype=np.int64), count)
    rng = np.random.default_rng([job["seed"], wanted["seed"]])
    least, most = wanted["min"], wanted["max"] or job["sequence"]
    if wanted["distribution"] == "uniform":
        return np.asarray(rng.integers(least, most, size=count, endpoint=True), dtype=np.int64)
    return lognormal_lengths(count, wanted["median"], wanted["sigma"], least, most, rng)


def _made_up(job: Mapping[str, Any], info: ModelInfo, rng: np.random.Generator, mask: np.ndarray | None) -> Arrays:
    if mask is not None and info.mask is None:
        raise InvalidFeeds(f"Model {job['model']!r} has no input known to be a mask, so its rows are always full")
    return random_feeds(info, rng, batch=job["batch"], sequence=job["sequence"], mask=mask, dims=job["dims"])


def _of_texts(job: Mapping[str, Any], info: ModelInfo, notes: list[str]) -> list[Arrays]:
    from isorun.models.tokenizer import Tokenizer, TruncationWarning, feeds_of

    try:
        tokenizer = Tokenizer.beside(job["origin"])
    except InvalidModel as error:
        raise InvalidFeeds(f"Model {job['model']!r} cannot be fed texts: {error}") from error
    texts = job["texts"]
    found = []
    for index in range(job["feeds"]):
        rows = [texts[(index * job["batch"] + row) % len(texts)] for row in range(job["batch"])]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TruncationWarning)
            encoded = tokenizer.encode(rows, job["sequence"])
        notes += [f"{_TIMED}{index}: {warning.message}" for warning in caught]
        try:
            found.append(feeds_of(encoded, info))
        except InvalidFeeds as error:
            raise InvalidFeeds(f"Model {job['model']!r} cannot be fed texts: {error}") from error
    return found
