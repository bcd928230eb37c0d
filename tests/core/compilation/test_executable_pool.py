"""The bounded pool of executables."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from isorun.compilation.executable_pool import ExecutablePool


class Pool:
    """A pool of keys' names, which are closed by noting them."""

    def __init__(self, limit: int = 2, memory: int | None = None) -> None:
        self.closed: list[str] = []
        self.pool = ExecutablePool[str, str]("engine", limit, memory, self.closed.append)

    def use(self, key: str, size: int = 1, alternative=lambda _: None):
        return self.pool.using(key, lambda: (key, size), alternative)

    def run(self, *keys: str, **options) -> list[str]:
        used = []
        for key in keys:
            with self.use(key, **options) as (_, executable):
                used.append(executable)
        return used


def test_the_least_recently_used_is_closed():
    pool = Pool()
    assert pool.run("a", "b", "a", "c") == ["a", "b", "a", "c"]
    assert pool.closed == ["b"]
    assert list(pool.pool.compiled()) == ["a", "c"]
    assert pool.pool.evicted == 1


def test_the_best_alternative_is_used_only_if_full():
    pool = Pool()
    costs = {"a": 3.0, "b": 2.0}
    assert pool.run("a", "b", alternative=costs.get) == ["a", "b"]
    assert pool.run("c", alternative=costs.get) == ["b"]
    assert pool.closed == []


def test_memory_is_bounded_by_the_largest():
    pool = Pool(limit=9, memory=10)
    pool.run("a", "b", size=4)
    pool.run("c", size=4)
    assert pool.closed == ["a"]
    pool.run("large", size=50)
    assert len(pool.pool.compiled()) == 2
    pool.run("d", size=1)
    assert pool.closed[-1] == "large"


def test_executable_in_use_is_not_closed():
    pool = Pool(limit=1)
    with ThreadPoolExecutor(1) as thread:
        with pool.use("a"):
            waiting = thread.submit(pool.run, "b")
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            assert pool.closed == []
        assert waiting.result(10) == ["b"]
    assert pool.closed == ["a"]


def test_discarded_executable_is_closed_by_its_last_user():
    pool = Pool()
    with ExitStack() as first, pool.use("a"):
        first.enter_context(pool.use("a"))
        pool.run("b")
        pool.pool.discard(lambda _: True)
        assert pool.closed == ["b"]
        first.close()
        assert pool.closed == ["b"]
    assert pool.closed == ["b", "a"]


def test_waiting_thread_compiles_after_a_failed_compilation():
    pool, started, fail = Pool(), threading.Event(), threading.Event()

    def failing():
        started.set()
        fail.wait(10)
        raise ValueError("no")

    def use_failing():
        with pool.pool.using("a", failing, lambda _: None):
            pass

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(use_failing)
        started.wait(10)
        second = threads.submit(pool.run, "a")
        fail.set()
        with pytest.raises(ValueError, match="no"):
            first.result(10)
        assert second.result(10) == ["a"]


def test_threads_that_a_fork_has_lost_are_forgotten():
    pool = Pool(limit=1)
    pool.use("a").__enter__()
    pool.pool.unlock_after_fork()
    assert pool.run("b") == ["b"]
