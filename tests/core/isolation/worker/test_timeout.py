"""Calls that take too long, and stopped workers."""

import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import isorun
from isolation import BAD, WELL, is_alive, run, wait_until
from isolation import worker_pid as pid
from isorun.errors import WorkerDied, WorkerTimeout
from isorun.isolation.worker import channel, client

TIMEOUT = 0.5


def stop(worker):
    """Stop a process; the signal may reach some of its threads later than others."""
    os.kill(worker, signal.SIGSTOP)
    tasks = Path(f"/proc/{worker}/task")
    assert wait_until(lambda: all(" T " in (task / "stat").read_text(encoding="utf-8") for task in tasks.iterdir()))


@pytest.fixture
def open_(model, fakes):
    opened = []

    def call(do="echo", where="run", timeout=TIMEOUT):
        options = {"do": do, "in": where}
        opened.append(isorun.Session(model, "odd", environment=fakes, options=options, timeout=timeout))
        return opened[-1]

    yield call
    for session in opened:
        session.close()


def test_timeout_kills_the_worker(open_):
    session = open_("sleep")
    first = pid(session)
    began = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"did not reply within 0\.5 s and was killed") as caught:
        run(session, BAD)
    assert TIMEOUT <= time.monotonic() - began < 20
    assert (caught.value.seconds, isinstance(caught.value, isorun.BackendFailed)) == (TIMEOUT, True)
    assert not is_alive(first)
    np.testing.assert_array_equal(run(session), WELL)
    assert pid(session) != first


@pytest.mark.parametrize("call", [run, lambda session: session.provenance], ids=["run", "provenance"])
def test_timeout_kills_a_stopped_worker(open_, call):
    session = open_()
    run(session)
    first = pid(session)
    stop(first)
    with pytest.raises(WorkerTimeout, match="stopped"):
        call(session)
    assert not is_alive(first)
    np.testing.assert_array_equal(run(session), WELL)
    assert session.provenance.precision == "fp32"


def test_other_calls_in_flight_raise_with_the_reason(open_):
    session = open_("sleep", timeout=1)
    errors = []

    def call():
        with pytest.raises((WorkerTimeout, WorkerDied)) as caught:
            run(session, BAD)
        errors.append(caught.value)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(20)
    assert len(errors) == 3
    assert any(isinstance(error, WorkerTimeout) for error in errors)
    for error in errors:
        if isinstance(error, WorkerDied):
            assert "a call took longer than 1 s" in str(error)
            assert "memory" not in str(error)


def test_compiling_has_no_time_limit(open_):
    np.testing.assert_array_equal(run(open_("nap", "compile", timeout=0.2)), WELL)


def test_call_waits_for_a_stopped_worker_and_warns(open_, caplog, monkeypatch):
    monkeypatch.setattr(channel, "_CHECK_SECONDS", 0.05)
    session = open_(timeout=None)
    run(session)
    worker = pid(session)
    for _ in range(2):
        caplog.clear()
        stop(worker)
        with caplog.at_level(logging.WARNING, "isorun"):
            future = session.submit(None, {"x": WELL})
            assert wait_until(lambda: bool(caplog.records))
            time.sleep(0.2)
            assert not future.done()
            os.kill(worker, signal.SIGCONT)
            np.testing.assert_array_equal(future.result(20)[0], WELL)
        (record,) = caplog.records
        assert f"kill -CONT {worker}" in record.getMessage()
    assert pid(session) == worker


def test_no_warning_about_a_busy_worker(open_, caplog, monkeypatch):
    monkeypatch.setattr(channel, "_CHECK_SECONDS", 0.05)
    session = open_("nap", timeout=None)
    np.testing.assert_array_equal(run(session, BAD), BAD)
    assert caplog.records == []


def test_close_kills_a_stopped_worker(open_, monkeypatch):
    monkeypatch.setattr(client, "_CLOSE_SECONDS", 0.3)
    session = open_(timeout=None)
    worker = pid(session)
    stop(worker)
    session.close()
    assert not is_alive(worker)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "3"])
def test_rejects_invalid_timeouts(model, fakes, timeout):
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        isorun.Session(model, "odd", environment=fakes, timeout=timeout)


def test_rejects_a_timeout_without_an_environment(model):
    with pytest.raises(ValueError, match="`timeout` has no effect without `environment`"):
        isorun.Session(model, "ort-cpu", timeout=3)
