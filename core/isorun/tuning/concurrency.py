"""How concurrent requests share a machine: how many run at once, with how many threads, in batches of which size."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from isorun.compilation import corpus
from isorun.errors import InvalidFeeds
from isorun.parity.samples import fixed_size
from isorun.system.threads import usable_cores
from isorun.tuning.accuracy import Run
from isorun.tuning.record import KIND, Subject
from isorun.tuning.timing import TimingBudget, interleave, slowdowns, without_gc
from isorun.types import Feeds, ModelInfo

_MAX_LANES = 8  # each may have a copy of the weights
_LANES_OF_DEVICE = 2  # one prepares its inputs while the other computes
_BATCH_TOKENS = (0, 256, 512)  # for each thread; 0 for no batches
_BATCH_TOKENS_OF_DEVICE = (0, 1024, 4096)
_MIN_REQUESTS = 12  # of a turn, for each lane
_BUDGET = TimingBudget(rounds=5, seconds=4.0)
_AS_FAST = 1.03  # a smaller gain is not worth the memory and the latency of a more costly plan

_logger = logging.getLogger("isorun")


class ConcurrencyPlan(NamedTuple):
    """How concurrent requests share a machine.

    Attributes:
        lanes: the number of runs at once.
        threads: the threads of each; ``None`` if all lanes share the session's own executable.
        batch_tokens: the maximum sum of the lengths of concurrent requests in a batch; 0 if batches do not pay.
    """

    lanes: int
    threads: int | None
    batch_tokens: int


OpenLanes = Callable[[ConcurrencyPlan], Sequence[Run]]
"""Compiles the lanes of a plan, and returns what runs all outputs of the model on each of them."""


def default_plan(subject: Subject) -> ConcurrencyPlan:
    """The plan where nothing was measured: a lane for each core, up to eight, which share the cores."""
    config, offers = subject.config, subject.backend.capabilities
    if config.accelerators:
        return ConcurrencyPlan(_LANES_OF_DEVICE, None, 0)
    if not offers.thread_safe or subject.compiler.options.environment is not None:
        return ConcurrencyPlan(1, None, 0)
    if offers.sets_threads and (config.threads or 1) > 1:  # the model is compiled again, with fewer threads
        lanes = min(config.threads or 1, _MAX_LANES)
        return ConcurrencyPlan(lanes, (config.threads or 1) // lanes, 0)
    return ConcurrencyPlan(max(1, usable_cores() // (offers.fixed_threads or usable_cores())), None, 0)


def remembered(subject: Subject) -> ConcurrencyPlan | None:
    """The plan that was measured before; ``None`` if there is none."""
    entry = subject.compiler.cache.get(KIND, _key(subject))
    return None if entry is None else ConcurrencyPlan(*entry.meta["chosen"])


def measured(subject: Subject, info: ModelInfo, open_lanes: OpenLanes) -> ConcurrencyPlan:
    """The best plan for many concurrent requests of mixed lengths, measured unless that was done before.

    Args:
        subject: the model, compiled for one request at a time.
        info: the model.
        open_lanes: compiles plans; called once for all with the same lanes and threads.

    Returns:
        The best plan; the default if the backend has no engines for the shapes of concurrent requests.
    """
    plans = _candidates(subject, info)
    if len(plans) == 1 or info.mask is None:
        return default_plan(subject)

    def measure(_: object) -> dict[str, Any]:
        start = time.perf_counter()
        _logger.info("measuring %d plans for concurrent requests, in about %g s", len(plans), _BUDGET.seconds)
        times = _measure(plans, info, open_lanes)
        slower = slowdowns(times)
        chosen = next(plan for plan in plans if slower.get(plan, np.inf) <= _AS_FAST)
        seconds = time.perf_counter() - start
        _logger.info("measured %d plans for concurrent requests in %.1f s: %s", len(plans), seconds, chosen)
        return {"chosen": list(chosen), "slowdowns": [[*plan, round(slower[plan], 4)] for plan in times]}

    try:
        entry = subject.compiler.cache.get_or_make(KIND, _key(subject), measure, models=subject.compiler.source.models)
    except InvalidFeeds as error:
        _logger.warning("concurrent requests run by the default plan, since none could be measured: %s", error)
        return default_plan(subject)
    return ConcurrencyPlan(*entry.meta["chosen"])


def _key(subject: Subject) -> str:
    return subject.key("concurrency", subject.config.precision)


def _candidates(subject: Subject, info: ModelInfo) -> list[ConcurrencyPlan]:
    """With batches and without: the default; and one lane, a lane for each core, and two between them if threads can be
    divided. What costs the least memory and latency is first."""
    default, threads = default_plan(subject), subject.config.threads or usable_cores()
    mixed = not (info.keeps_padding or info.mixes_rows or fixed_size(info.required, 0))
    if default.threads is None:
        sizes = _BATCH_TOKENS_OF_DEVICE if subject.config.accelerators else [size * threads for size in _BATCH_TOKENS]
        return [default._replace(batch_tokens=size) for size in (sizes if mixed else (0,))]
    counts = sorted({1, default.lanes, *(default.lanes // part for part in (2, 4) if default.lanes // part > 1)})
    return [
        ConcurrencyPlan(lanes, None if lanes == 1 else threads // lanes, size * (threads // lanes))
        for lanes in counts
        for size in (_BATCH_TOKENS if mixed else (0,))
    ]


def _measure(
    plans: Sequence[ConcurrencyPlan], info: ModelInfo, open_lanes: OpenLanes
) -> dict[ConcurrencyPlan, list[float]]:
    """The seconds for a token, by plan and round."""
    with ThreadPoolExecutor(max(plan.lanes for plan in plans)) as pool:
        opened = {key: open_lanes(plan) for key, plan in {plan[:2]: plan for plan in plans}.items()}
        turns = {plan: partial(_turn, pool, opened[plan[:2]], *_work(info, plan.batch_tokens)) for plan in plans}
        times, failed = interleave(turns, _BUDGET)
    if not times:
        raise next(iter(failed.values()))
    return times


def _work(info: ModelInfo, batch_tokens: int) -> tuple[list[Feeds], int]:
    """What a lane runs in a turn, and how many tokens that are: requests alone, or in batches of similar lengths."""
    lengths = corpus.random_lengths(info)
    count = max(_MIN_REQUESTS, -(-batch_tokens * len(lengths) // int(lengths.sum())))
    served = np.array(corpus.spread(lengths.tolist(), count))
    batches = max(1, round(int(served.sum()) / batch_tokens)) if batch_tokens else len(served)
    rng = np.random.default_rng(0)
    work = [corpus.random_batch(info, part, rng) for part in np.array_split(served, batches)]
    return work, int(served.sum())


def _turn(pool: ThreadPoolExecutor, lanes: Sequence[Run], work: Sequence[Feeds], tokens: int) -> float:
    """Seconds for a token when all lanes work at once, each at everything, in another order."""
    finished: list[float] = []

    def serve(run: Run, first: int) -> float:
        start = time.perf_counter()
        try:
            for feeds in (*work[first:], *work[:first]):
                run(feeds)
            return time.perf_counter() - start
        finally:
            finished.append(first)
            for feeds in itertools.cycle(work):  # the other lanes do not have the machine to themselves
                if len(finished) == len(lanes):
                    break
                run(feeds)

    with without_gc():
        seconds = list(pool.map(serve, lanes, (lane % len(work) for lane in range(len(lanes)))))
    return 1 / sum(1 / taken for taken in seconds) / tokens
