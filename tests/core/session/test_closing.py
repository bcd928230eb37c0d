"""What a closed session says, and what it waits for."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isorun
import tiny
from isorun.errors import IsorunError


def test_after_close(bert, any_backend):
    session = isorun.Session(bert, backend=any_backend)
    binding = session.io_binding()
    for name, array in tiny.feeds().items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("pooler_output")
    binding.run()
    session.close()
    session.close()
    for call in (
        lambda: session.run(None, tiny.feeds()),
        lambda: session.submit(None, tiny.feeds()),
        lambda: session.run_async(None, tiny.feeds(), print, None),
        session.io_binding,
        lambda: session.run_with_iobinding(binding),
        binding.run,
        lambda: session.provenance,
        session.get_providers,
        session.__enter__,
    ):
        with pytest.raises(IsorunError, match="This session is closed"):
            call()
    assert session.get_inputs()[0].name == "input_ids"


def test_closing_waits_for_what_was_submitted(bert, any_backend):
    with isorun.Session(bert, backend=any_backend) as session:
        expected = session.run(None, tiny.feeds())[0]
        futures = [session.submit(None, tiny.feeds()) for _ in range(20)]
    for future in futures:
        np.testing.assert_array_equal(future.result(0)[0], expected)


def test_a_callback_may_close_the_session(bert):
    session = isorun.Session(bert, backend="ort-cpu")
    done, got = threading.Event(), []

    def callback(outputs, user_data, error):
        try:
            session.close()
        except (IsorunError, RuntimeError) as failure:
            got.append(failure)
        done.set()

    others = [session.submit(None, tiny.feeds()) for _ in range(8)]
    session.run_async(None, tiny.feeds(), callback, None)
    assert done.wait(20)
    assert got == []
    with pytest.raises(IsorunError, match="This session is closed"):
        session.run(None, tiny.feeds())
    assert all(len(other.result(20)) == 2 for other in others)


def test_a_session_that_nobody_closed_is_collected(bert):
    session = isorun.Session(bert, backend="ort-cpu")
    session.submit(None, tiny.feeds()).result(20)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def run_plainly(session):
    return session.run(None, tiny.feeds())[0]


def run_a_new_binding(session):
    binding = session.io_binding()
    for name, array in tiny.feeds().items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("last_hidden_state")
    binding.run()
    return binding.copy_outputs_to_cpu()[0]


@pytest.mark.parametrize("run", [run_plainly, run_a_new_binding])
def test_closing_amid_runs_of_other_threads(bert, any_backend, run):
    """Each run ends well or says that the session is closed: nothing else, and no crash."""
    for _ in range(3):
        session = isorun.Session(bert, backend=any_backend)
        expected = session.run(None, tiny.feeds())[0]
        started = threading.Barrier(5)

        def work(session=session, expected=expected, started=started) -> list[str]:
            started.wait()
            for _ in range(200):
                try:
                    assert np.array_equal(run(session), expected)
                except IsorunError as error:
                    return [str(error)]
            return []

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work) for _ in range(4)]
            started.wait()
            session.close()
            said = {message for future in futures for message in future.result(60)}
        assert said <= {"This session is closed. Open another."}
