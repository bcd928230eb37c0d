"""Workers that die, sessions that close, parents that die: what is raised and what is left."""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import isorun
import programs
import tiny
from isolation import BAD, WELL, is_alive, run, wait_until
from isolation import worker_pid as pid
from isorun.errors import EnvironmentBroken, IsorunError, WorkerDied
from isorun.isolation.worker import client


@pytest.mark.parametrize(
    ("do", "how", "signalled", "code", "log"),
    [
        ("crash", "killed by SIGSEGV during a call of odd", "SIGSEGV", None, "in misbehave"),
        ("exit", "exited with code 7 during a call of odd", None, 7, "the runtime gives up"),
    ],
)
def test_crash_raises_and_the_next_call_starts_a_worker(odd, do, how, signalled, code, log):
    session = odd(do)
    np.testing.assert_array_equal(run(session), WELL)
    first = pid(session)
    with pytest.raises(WorkerDied, match=how) as caught:
        run(session, BAD)
    assert (caught.value.signal, caught.value.exit_code) == (signalled, code)
    assert log in caught.value.log
    assert log in str(caught.value)
    np.testing.assert_array_equal(run(session), WELL)
    assert pid(session) != first
    assert not is_alive(first)


def test_crash_while_compiling(odd):
    with pytest.raises(WorkerDied, match="SIGSEGV during a call of odd"):
        odd("crash", "compile")


def test_worker_that_died_idle_is_replaced(odd):
    session = odd()
    for _ in range(3):
        run(session)
        worker = pid(session)
        os.kill(worker, signal.SIGKILL)
        assert wait_until(lambda worker=worker: not is_alive(worker))
        np.testing.assert_array_equal(run(session), WELL)
    worker = pid(session)
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(worker))
    assert session.provenance.details["pid"] == pid(session) != worker


def test_all_calls_in_flight_raise(odd):
    session = odd("sleep")
    pool = ThreadPoolExecutor(2)
    futures = [pool.submit(session.run, None, {"x": BAD}) for _ in range(2)]
    connection = session._resolved.worker.connection()
    assert wait_until(lambda: len(connection._channels) - len(connection._idle) == 3)  # one is for requests by name
    time.sleep(0.1)
    os.kill(connection.process.pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(WorkerDied, match=r"killed by SIGKILL.*memory"):
            future.result(20)
    pool.shutdown()
    np.testing.assert_array_equal(run(session), WELL)


@pytest.mark.long
def test_kills_during_a_thousand_calls_of_four_threads(bert, fakes):
    """Every call returns the right results or raises WorkerDied; none hangs; nothing is left."""
    feeds = [tiny.feeds(*shape, seed=index) for index, shape in enumerate([(1, 3), (2, 9), (8, 16), (32, 40)])]
    with isorun.Session(bert, "ort-cpu", threads=1, padding="keep") as here:
        expected = [here.run(None, fed) for fed in feeds]
    counts: Counter[str] = Counter()
    workers: set[int] = set()
    done = threading.Event()
    session = isorun.Session(bert, "ort-cpu", threads=1, padding="keep", environment=fakes)

    def call(seed: int) -> None:
        choice = random.Random(seed)
        kept: list[tuple[int, list[np.ndarray]]] = []
        for _ in range(250):
            which = choice.randrange(len(feeds))
            try:
                kept.append((which, session.run(None, feeds[which])))
            except WorkerDied as error:
                counts[f"died of {error.signal}"] += 1
                continue
            del kept[:-3]  # results that are still held must not change
            right = all(np.array_equal(a, b) for w, got in kept for a, b in zip(got, expected[w], strict=True))
            counts["right" if right else "WRONG"] += 1

    def kill() -> None:
        """Kill a worker after some hundred calls; sometimes the next one too, while it starts or compiles."""
        choice = random.Random(0)
        answered = 0
        while not done.wait(0.002):
            connection = session._resolved.worker._connection
            if connection is None or connection.process.dead or counts["right"] < answered:
                continue
            time.sleep(choice.random() / 100)
            workers.add(connection.process.pid)
            with suppress(ProcessLookupError):
                os.kill(connection.process.pid, signal.SIGKILL)
            answered = counts["right"] + choice.choice([0, 100, 100, 200])

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    killer = threading.Thread(target=kill)
    for thread in (*threads, killer):
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a call hangs"
    done.set()
    killer.join()
    session.close()
    assert counts.total() == 1000
    assert set(counts) == {"right", "died of SIGKILL"}
    assert len(workers) > 2
    assert not any(map(is_alive, workers))
    gc.collect()
    assert "memfd:isorun" not in Path("/proc/self/maps").read_text(encoding="utf-8"), "a segment is still mapped"


def test_close_ends_the_worker(odd):
    session = odd()
    worker = pid(session)
    session.close()
    session.close()
    assert not is_alive(worker)
    with pytest.raises(IsorunError, match="This session is closed"):
        run(session)


def test_garbage_collected_session_ends_its_worker(model, fakes):
    session = isorun.Session(model, "odd", environment=fakes)
    result = run(session, np.ones(100_000, np.float32))
    worker = pid(session)
    del session
    gc.collect()
    assert not is_alive(worker)
    assert (result == 1).all()


def test_failed_open_leaves_no_worker(model, fakes):
    before = children()
    with pytest.raises(IsorunError):
        isorun.Session(model, ["absent", "no-such"], environment=fakes)
    assert children() == before


def test_close_waits_for_runs_in_flight(odd):
    session = odd("nap")
    future = session.submit(None, {"x": BAD})
    thread_result = []
    thread = threading.Thread(target=lambda: thread_result.append(run(session, BAD)))
    thread.start()
    connection = session._resolved.worker.connection()
    assert wait_until(lambda: len(connection._channels) - len(connection._idle) == 3)
    session.close()
    thread.join()
    np.testing.assert_array_equal(future.result(0)[0], BAD)
    np.testing.assert_array_equal(thread_result[0], BAD)


def test_close_kills_a_worker_that_takes_too_long(odd, monkeypatch):
    monkeypatch.setattr(client, "_CLOSE_SECONDS", 0.3)
    session = odd("sleep")
    caught = []

    def work() -> None:
        try:
            run(session, BAD)
        except IsorunError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    connection = session._resolved.worker.connection()
    assert wait_until(lambda: len(connection._channels) - len(connection._idle) == 2)
    session.close()
    thread.join(20)
    assert caught == ["This session is closed. Open another."]
    session = odd("hang-at-end")
    worker = pid(session)
    session.close()
    assert not is_alive(worker)


SCRIPT = """
import contextlib, os, signal, sys, threading, time
import numpy as np
import isorun
session = isorun.Session(sys.argv[1], "odd", environment=sys.argv[2], options={"do": "sleep"})
def work():
    with contextlib.suppress(isorun.IsorunError):
        session.run(None, {"x": -np.ones(3, np.float32)})
if sys.argv[3] != "idle":
    for _ in range(20):  # at exit they drop their channels while these are being closed
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
print(session._resolved.worker.connection().process.pid, flush=True)
if sys.argv[4] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[4] == "exit":
    os._exit(0)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("does", ["idle", "working"])
@pytest.mark.parametrize("ends", ["kill", "exit", "return"])
def test_worker_does_not_outlive_the_session_process(tmp_path, model, fakes, does, ends):
    (tmp_path / "model.onnx").write_bytes(model)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, tmp_path / "model.onnx", fakes, does, ends],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stderr == ""
    assert wait_until(lambda: not is_alive(int(ran.stdout)))


FORK = """
import os, sys, warnings
import numpy as np
import isorun
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
session = isorun.Session(sys.argv[1], "odd", environment=sys.argv[2])
large = session.run(None, {"x": np.full(50_000, 7, np.float32)})[0]
worker = session._resolved.worker.connection().process.pid
child = os.fork()
for value in range(20):
    x = np.full(50_000, value, np.float32)
    assert (session.run(None, {"x": x})[0] == value).all()
assert (session._resolved.worker.connection().process.pid == worker) == bool(child)
if not child:
    assert (large == 7).all()
    session.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
large[...] = 8
assert (session.run(None, {"x": x})[0] == 19).all()
session.close()
"""


def test_forked_process_starts_another_worker(tmp_path, model, fakes):
    (tmp_path / "model.onnx").write_bytes(model)
    programs.printed(FORK, tmp_path / "model.onnx", fakes)


WITHOUT_STREAMS = """
import os, sys
for descriptor in map(int, sys.argv[3].split()):
    os.close(descriptor)
import numpy as np
import isorun
with isorun.Session(sys.argv[1], "odd", environment=sys.argv[2]) as session:
    x = np.full(4, 7, np.float32)
    assert (session.run(None, {"x": x})[0] == x).all()
"""


@pytest.mark.parametrize("closed", ["0 1 2", "0", "1 2"])
def test_a_process_without_standard_streams_has_workers(tmp_path, model, fakes, closed):
    (tmp_path / "model.onnx").write_bytes(model)
    command = [sys.executable, "-c", WITHOUT_STREAMS, tmp_path / "model.onnx", fakes, closed]
    assert subprocess.run(command, timeout=300).returncode == 0


def children() -> set[str]:
    """The running child processes."""
    pids = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended since it was listed
            pids |= set((task / "children").read_text(encoding="utf-8").split())
    return {pid for pid in pids if is_alive(int(pid))}


def _after_its_worker_died(session: isorun.Session) -> None:
    worker = pid(session)
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(worker))


def test_a_new_worker_runs_no_other_model(fakes, model, tmp_path):
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    path.write_bytes(model)
    other.write_bytes(model.replace(b"Neg", b"Abs"))
    with isorun.Session(path, "ort-cpu", environment=fakes) as session:
        np.testing.assert_array_equal(run(session), -WELL)
        other.replace(path)
        np.testing.assert_array_equal(run(session), -WELL)
        _after_its_worker_died(session)
        for _ in range(2):
            with pytest.raises(isorun.InvalidModel, match="has changed since it was opened"):
                run(session)


def test_a_new_worker_runs_no_other_runtime(odd, monkeypatch):
    session = odd()
    _after_its_worker_died(session)
    np.testing.assert_array_equal(run(session), WELL)
    monkeypatch.setenv("ODD_VERSION", "2")
    _after_its_worker_died(session)
    before = children()
    for _ in range(2):
        with pytest.raises(EnvironmentBroken, match=r"has changed .* version of odd was None and is 2\. Open another"):
            run(session)
    assert children() == before


def test_closing_a_session_leaves_no_descriptors(odd):
    odd().close()
    gc.disable()
    try:
        before = os.listdir("/proc/self/fd")  # noqa: PTH208 - which opens one itself
        odd().close()
        assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    finally:
        gc.enable()


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_new_worker_runs_no_damaged_file(damage, fakes, bert, tmp_path):
    with isorun.Session(bert, "ort-cpu", environment=fakes, cache_dir=tmp_path) as session:
        feeds = tiny.feeds()
        expected = session.run(None, feeds)
        if damage == "remove":
            shutil.rmtree(tmp_path / "lowered")
        else:
            weights = max((tmp_path / "lowered").rglob("*.bin"), key=lambda path: path.stat().st_size)
            content = bytearray(weights.read_bytes())
            content[3::4] = bytes(byte ^ 1 for byte in content[3::4])  # exponents
            weights.chmod(0o644)
            with weights.open("r+b") as file:
                file.write(content)
        _after_its_worker_died(session)
        for result, right in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(result, right)
