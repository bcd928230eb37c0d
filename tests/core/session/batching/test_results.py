"""Each request gets what it would have got alone, in the requests' order, whatever the others do."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import Any

import numpy as np
import pytest

import isorun
import small_bert
from isolation import wait_until
from isorun.errors import BackendFailed, InvalidFeeds
from recorder import Recorder, small
from singles import alone, assert_same, request


def test_each_gets_its_own_in_order(session: isorun.Session) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 60)
    requests = [request(int(length), seed) for seed, length in enumerate(lengths)]
    with session.map(requests, max_tokens=200) as results:
        for feeds, result in zip(requests, results, strict=True):
            assert_same(result, alone(session, feeds))


def test_results_left_at_an_error_leave_no_threads() -> None:
    def serving() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("isorun-batch")}

    before, model = serving(), Recorder()
    model.poison = 3

    def take() -> None:
        for _ in model.map([small(4, 3)]):
            pass

    with contextlib.suppress(BackendFailed):
        take()
    assert wait_until(lambda: gc.collect() >= 0 and serving() <= before)


def test_an_error_is_its_request_s_alone(session: isorun.Session) -> None:
    bad_index = request(4)
    bad_index["input_ids"][2] = small_bert.VOCABULARY
    bad_type = {**request(4), "input_ids": np.ones(4, np.float32)}
    requests: list[Any] = [request(3), bad_index, request(5), bad_type, {}, None, request(6)]
    results = session.map(requests)
    assert_same(next(results), alone(session, requests[0]))
    with pytest.raises(InvalidFeeds, match=r"got 60 at \[0, 2\]"):
        next(results)
    assert_same(next(results), alone(session, requests[2]))
    with pytest.raises(InvalidFeeds, match="float32"):
        next(results)
    with pytest.raises(InvalidFeeds, match="No feed for"):
        next(results)
    with pytest.raises(InvalidFeeds, match="mapping"):
        next(results)
    assert_same(next(results), alone(session, requests[6]))
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
