"""One session, many threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import isorun
import tiny
from bindings import bound


def test_a_backend_that_is_not_thread_safe_is_run_in_turns(bert):
    with isorun.Session(bert, backend="reference", padding="keep") as session:
        inside, most = 0, 0
        run, report = session._executable.run, session._executable.report

        def watched(call, *given):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            try:
                time.sleep(0.001)
                return call(*given)
            finally:
                inside -= 1

        session._executable.run = lambda names, feeds: watched(run, names, feeds)
        session._executable.report = lambda: watched(report)

        def work(number: int) -> None:
            if number == 5:
                assert session.provenance.backend == "reference"
                return
            if number % 2:
                session.run(None, tiny.feeds())
                return
            binding = bound(session, tiny.feeds(), "pooler_output")
            binding.run()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(24)))
        assert most == 1
