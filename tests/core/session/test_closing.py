"""What a closed session says, and what it waits for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isorun
import tiny
from bindings import bound
from isorun.errors import IsorunError


def test_calls_after_close_raise(bert, any_backend):
    session = isorun.Session(bert, backend=any_backend)
    binding = bound(session, tiny.feeds(), "pooler_output")
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
    assert all(len(future.result(20)) == 2 for future in others)


def run_a_new_binding(session):
    binding = bound(session, tiny.feeds(), "last_hidden_state")
    binding.run()
    return binding.copy_outputs_to_cpu()[0]


def test_closing_while_other_threads_run_bindings(bert, any_backend):
    """Each run returns its outputs or raises because the session is closed."""
    for _ in range(3):
        session = isorun.Session(bert, backend=any_backend)
        expected = run_a_new_binding(session)
        started = threading.Barrier(5)

        def work(session=session, expected=expected, started=started) -> list[str]:
            started.wait()
            for _ in range(200):
                try:
                    assert np.array_equal(run_a_new_binding(session), expected)
                except IsorunError as error:
                    return [str(error)]
            return []

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work) for _ in range(4)]
            started.wait()
            session.close()
            messages = {message for future in futures for message in future.result(60)}
        assert all("closed" in message for message in messages)
