"""One session, many threads."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import backends
import isorun
import tiny
from bindings import bound
from isorun_conformance import fakes


class Watched(fakes.Right):
    """Not thread-safe. It notes how many calls overlap."""

    inside = most = 0

    def compile(self, model, config):
        return _Watched(model, config)


class _Watched(fakes.RightExecutable):
    def run(self, output_names, feeds):
        with overlapping():
            return super().run(output_names, feeds)

    def report(self):
        with overlapping():
            return super().report()


@contextmanager
def overlapping():
    Watched.inside += 1
    Watched.most = max(Watched.most, Watched.inside)
    try:
        time.sleep(0.001)
        yield
    finally:
        Watched.inside -= 1


def test_a_backend_that_is_not_thread_safe_is_run_in_turns(bert):
    with backends.registered(watched=Watched), isorun.Session(bert, "watched", padding="auto") as session:

        def work(number: int) -> None:
            if number == 5:
                assert session.provenance.backend == "watched"
                return
            if number % 2:
                session.run(None, tiny.feeds())
                return
            binding = bound(session, tiny.feeds(), "pooler_output")
            binding.run()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(24)))
        assert Watched.most == 1
