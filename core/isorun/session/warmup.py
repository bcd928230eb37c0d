"""What a session does before its first request: feeds to warm up with, and the arrangement of concurrent requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from isorun.compilation import corpus
from isorun.compilation.backend_selection import Resolved
from isorun.models.feeds import FeedChecker
from isorun.models.lowering import ModelGraphs
from isorun.parity.samples import random_feeds, right_padded
from isorun.session.batching import Batcher, Layout
from isorun.session.lanes import Arrangement, Lanes
from isorun.system.cache import sha256
from isorun.system.disturbance import Attempts
from isorun.system.hardware import cpu_name
from isorun.system.threads import usable_cores
from isorun.types import Feeds, ModelInfo

_SHAPES = ((1, 16), (1, 64), (8, 32), (8, 128))  # batch, sequence
_MOST_LENGTHS = 128
_MOST_LANES = 8  # each may have a copy of the weights
_BUDGETS = (0, 256, 512)  # tokens of a batch of concurrent requests, for each thread; 0 for no batches
_PASS_SECONDS, _FEWEST, _MOST, _ROUNDS = 0.8, 12, 256, 3
_REPEATS = 12  # of passes that other programs disturbed
_GAIN = 1.03  # what a more costly arrangement must gain
_KIND, _VERSION = "arrangements", 4  # of the cache's entries

_logger = logging.getLogger("isorun")


def feeds(graphs: ModelGraphs, checker: FeedChecker, on: Iterable[tuple[int, int] | str | Feeds] | None) -> list[Feeds]:
    """Feeds to warm up with, validated: with padding and without, so that every graph of the model is compiled.

    Args:
        graphs: the model.
        checker: validates.
        on: shapes (batch, sequence), texts or feeds; ``None`` for a range of shapes.

    Raises:
        InvalidFeeds: the model does not accept them, or random feeds cannot be generated for it.
    """
    info, rng = graphs.info, np.random.default_rng(0)
    given = list(_SHAPES if on is None else on)
    shapes = [each for each in given if isinstance(each, tuple)]
    samples: list[Any] = [each for each in given if not isinstance(each, tuple)]
    if on is None:
        shapes = list(
            dict.fromkeys((batch, sequence) for batch, sequence in (_fitting(info, *shape) for shape in shapes))
        )
    made: list[Feeds] = list(corpus.as_feeds(graphs, samples)) if samples else []
    for batch, sequence in shapes:
        for lengths in (np.full(batch, sequence), np.full(batch, max(1, sequence // 3))):
            lengths[0] = sequence
            mask = None if info.mask is None else right_padded(lengths, sequence)
            made.append(checker.check(random_feeds(info, rng, batch=batch, sequence=sequence, mask=mask)))
    between = (random_feeds(info, rng, batch=1, sequence=length) for length in _lengths_between(info.mask, made))
    return [*made, *map(checker.check, between)]


def _lengths_between(mask: str | None, given: Sequence[Feeds]) -> list[int]:
    """The lengths between those of single requests, at most 128 of them: runtimes prepare for each length.

    The first run of a length takes 1.6 times as long as later ones on OpenVINO (2026.4.1, MiniLM).
    """
    shapes = [] if mask is None else [np.shape(feeds[mask]) for feeds in given if mask in feeds]
    lengths = {shape[1] for shape in shapes if len(shape) == 2 and shape[0] == 1}
    if not lengths:
        return []
    every = range(min(lengths), max(lengths) + 1)
    return [length for length in every[:: -(-len(every) // _MOST_LENGTHS)] if length not in lengths]


def default(resolved: Resolved) -> Arrangement:
    """The arrangement where nothing was measured: a lane for each core, up to eight, which share the cores."""
    threads, offers = resolved.config.threads or 1, resolved.backend.capabilities
    if not resolved.can_divide or threads == 1:
        fixed = offers.fixed_threads if resolved.worker is None and offers.thread_safe else None
        lanes = max(1, usable_cores() // fixed) if fixed else 1
        return Arrangement(lanes if resolved.config.device == "cpu" else 2, None, 0)
    lanes = min(threads, _MOST_LANES)
    return Arrangement(lanes, threads // lanes, 0)


def remembered(resolved: Resolved) -> Arrangement | None:
    """The arrangement that was measured before, for this model, machine and options; ``None`` if there is none."""
    entry = resolved.compiler.cache.get(_KIND, _key(resolved))
    return None if entry is None else Arrangement(*entry.meta["chosen"])


def measured(resolved: Resolved, make_lanes: Callable[[Arrangement], Lanes]) -> Arrangement:
    """The best arrangement for many concurrent requests of mixed lengths, measured unless that was done before.

    Args:
        resolved: the session's model.
        make_lanes: compiles an arrangement.
    """
    usual = default(resolved)
    info = resolved.model.info
    if usual.threads is None or info.mask is None:
        return usual
    requests = corpus.random_batches(info, 1, _MOST)

    def measure(_: object) -> dict[str, Any]:
        start = time.perf_counter()
        seconds = _measure(_candidates(resolved), requests, make_lanes, info)
        chosen = _best(seconds)
        rows = [[*candidate, round(value, 5)] for candidate, value in seconds.items()]
        _logger.info(
            "measured %d arrangements of concurrent requests in %.1f s: %s",
            len(seconds),
            time.perf_counter() - start,
            chosen,
        )
        return {"chosen": list(chosen), "seconds": rows, "requests": len(requests)}

    entry = resolved.compiler.cache.get_or_make(_KIND, _key(resolved), measure)
    return Arrangement(*entry.meta["chosen"])


def _key(resolved: Resolved) -> str:
    config, backend = resolved.config, resolved.backend
    options = sorted((name, repr(value)) for name, value in config.options.items())
    machine = (cpu_name(), config.device, config.threads)
    about = (_VERSION, backend.name, backend.version(), config.precision, resolved.compiler.options.padding)
    return sha256(repr((resolved.model.lowered.fingerprint, machine, about, options)).encode())[:40]


def _candidates(resolved: Resolved) -> list[Arrangement]:
    """One lane with all threads, a lane for each core, and two between them; each with and without batches."""
    threads, info = resolved.config.threads or 1, resolved.model.info
    most = min(threads, _MOST_LANES)
    counts = sorted({1, most, *(most // part for part in (2, 4) if most // part > 1)})
    budgets = (0,) if info.keeps_padding or info.mixes_rows else _BUDGETS
    return [
        Arrangement(lanes, None if lanes == 1 else threads // lanes, budget * (threads // lanes))
        for lanes in counts
        for budget in budgets
    ]


def _measure(
    candidates: Sequence[Arrangement],
    requests: Sequence[Feeds],
    make_lanes: Callable[[Arrangement], Lanes],
    info: ModelInfo,
) -> dict[Arrangement, float]:
    """The least time in seconds for each candidate to serve all requests, interleaved: the least disturbed."""
    lanes: dict[tuple[int, int | None], Lanes] = {}
    try:
        for candidate in candidates:
            if candidate[:2] not in lanes:
                lanes[candidate[:2]] = made = make_lanes(candidate)
                made.models()
        first = next(iter(lanes.values()))
        for _ in range(2):  # the first time, runtimes prepare for each length
            start = time.perf_counter()
            for feeds in requests[:_FEWEST]:
                first.run(info.output_names, feeds)
            each = (time.perf_counter() - start) / _FEWEST
        served = requests[: int(np.clip(_PASS_SECONDS / each, _FEWEST, _MOST))]
        times: dict[Arrangement, list[float]] = {candidate: [] for candidate in candidates}
        attempts = Attempts(_REPEATS)
        for turn in range(_ROUNDS + 1):
            for candidate in candidates if turn % 2 else candidates[::-1]:
                serve = partial(_serve, lanes[candidate[:2]], candidate, served, info)
                *_, (seconds, _) = attempts(serve)
                if turn:  # the first round warms up
                    times[candidate].append(seconds)
        return {candidate: min(values) for candidate, values in times.items()}
    finally:
        for made in lanes.values():
            made.close()


def _serve(lanes: Lanes, arrangement: Arrangement, requests: Sequence[Feeds], info: ModelInfo) -> float:
    """Seconds for all requests, submitted at once."""
    start = time.perf_counter()
    if arrangement.batch_tokens:
        budget = arrangement.batch_tokens
        layout, parallel = Layout(info, None), arrangement.lanes
        batcher = Batcher(lanes.run, layout, budget, 0.0, budget, parallel=parallel, interactive=True)
        futures = [batcher.submit(feeds)[0] for feeds in requests]
        for future in futures:
            future.result()
        taken = time.perf_counter() - start
        batcher.close(cancel=False)
        return taken
    with ThreadPoolExecutor(arrangement.lanes) as pool:
        for _ in pool.map(lambda feeds: lanes.run(info.output_names, feeds), requests):
            pass
        return time.perf_counter() - start


def _best(seconds: dict[Arrangement, float]) -> Arrangement:
    """The fastest; the first one, which costs the least memory and latency, among those within 3 %."""
    fastest = min(seconds.values())
    return next(candidate for candidate, value in seconds.items() if value <= fastest * _GAIN)


def _fitting(info: ModelInfo, batch: int, sequence: int) -> tuple[int, int]:
    """A shape within the model's limits."""
    fitted_batch, fitted_sequence = corpus.sizes(info, batch, sequence)
    return fitted_batch, fitted_sequence or sequence
