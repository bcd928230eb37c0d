"""Batches of requests that arrive one by one."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isorun.errors import BackendFailed, InvalidArgument, IsorunError
from isorun.session import batching
from isorun.types import ModelInfo
from recorder import FIXED, PADDABLE, Recorder, small


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=40),
    max_tokens=st.integers(1, 80),
    info=st.sampled_from((PADDABLE, FIXED)),
)
def test_any_lengths_within_any_budget(lengths: list[int], max_tokens: int, info: ModelInfo) -> None:
    model = Recorder()
    requests = [small(length, value) for value, length in enumerate(lengths)]
    got = list(model.map(requests, info, max_tokens=max_tokens))
    assert [result[0].tolist() for result in got] == [feeds["ids"].tolist() for feeds in requests]
    assert sum(rows for rows, _ in model.batches) == len(requests)
    assert all(rows == 1 or rows * longest <= max_tokens for rows, longest in model.batches)


def test_like_lengths_share_a_batch() -> None:
    model = Recorder()
    list(model.map([small(length) for length in [2, 30] * 8], max_tokens=60, max_wait=60))
    assert sum(rows * longest for rows, longest in model.batches) == 8 * 2 + 8 * 30  # nothing was padded
    assert len(model.batches) < 16


@pytest.mark.parametrize(("interactive", "first"), [(False, (2, 2)), (True, (2, 6))])
def test_requests_of_like_length_come_first_unless_callers_wait(interactive: bool, first: tuple[int, int]) -> None:
    model = Recorder()
    layout = batching.Layout(PADDABLE, None)
    batcher = batching.Batcher(model.run, layout, 8, 60, enough=1000, interactive=interactive)
    futures = [batcher.submit(small(length))[0] for length in (2, 6, 8, 8, 2)]
    batcher.close(cancel=False)
    assert all(future.done() for future in futures)
    assert model.batches[0] == first


def test_a_batch_that_fails_is_run_again_one_by_one() -> None:
    model = Recorder()
    model.poison = 3
    results = model.map([small(4, value) for value in range(1, 6)], max_wait=60, return_exceptions=True)
    got = list(results)
    assert isinstance(got[2], BackendFailed)
    assert [result[0][0] for index, result in enumerate(got) if index != 2] == [1, 2, 4, 5]
    assert model.batches == [(5, 4)] + [(1, 4)] * 5


def test_a_caller_that_gives_up_is_not_run() -> None:
    model = Recorder()
    batcher = batching.Batcher(model.run, batching.Layout(PADDABLE, None), 100, 0.2, enough=100)
    gone, _ = batcher.submit(small(3))
    stays, _ = batcher.submit(small(4, 9))
    assert gone.cancel()
    assert stays.result(20)[0].tolist() == [9] * 4
    assert model.batches == [(1, 4)]
    batcher.close(cancel=True)
    with pytest.raises(IsorunError, match="closed"):
        batcher.submit(small(2))


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_runs_or_cancels_what_waits(cancel: bool) -> None:
    model = Recorder()
    batcher = batching.Batcher(model.run, batching.Layout(PADDABLE, None), 100, 60, enough=100)
    future, _ = batcher.submit(small(3))
    batcher.close(cancel=cancel)
    assert future.cancelled() is cancel
    assert len(model.batches) == (0 if cancel else 1)


def test_waiting_may_take_as_long_as_others_need() -> None:
    model = Recorder()
    batcher = batching.Batcher(model.run, batching.Layout(PADDABLE, None), 8, float("inf"), enough=8)
    first, _ = batcher.submit(small(4))
    second, _ = batcher.submit(small(4))
    assert first.result(20)[0].shape == second.result(20)[0].shape == (4,)
    assert model.batches == [(2, 4)]
    batcher.close(cancel=True)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_rejects_an_invalid_max_wait(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="max_wait"):
        Recorder().map([small(3)], max_wait=seconds)


def test_rejects_max_tokens_below_1() -> None:
    with pytest.raises(InvalidArgument, match="max_tokens"):
        Recorder().map([small(3)], max_tokens=0)


def test_each_thread_begins_with_the_initializer() -> None:
    seen = set()
    batcher = batching.Batcher(
        Recorder().run,
        batching.Layout(PADDABLE, None),
        8,
        0.0,
        8,
        parallel=3,
        initializer=lambda: seen.add(threading.current_thread().name),
    )
    batcher.close(cancel=False)
    assert len(seen) == 3


def test_an_error_of_the_initializer_is_raised_and_leaves_no_thread() -> None:
    def fail() -> None:
        raise BackendFailed("broken")

    before = threading.active_count()
    with pytest.raises(BackendFailed, match="broken"):
        batching.Batcher(Recorder().run, batching.Layout(PADDABLE, None), 8, 0.0, 8, initializer=fail)
    assert threading.active_count() == before
