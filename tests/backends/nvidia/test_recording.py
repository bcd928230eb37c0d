"""Recordings are made alone, also with many threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from isorun_backends.nvidia import recording


def test_a_recording_is_alone_and_runs_are_not():
    inside: list[str] = []
    seen: list[tuple[str, ...]] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        name, gate = ("recording", recording.recording) if number % 5 == 0 else ("run", recording.running)
        with gate():
            with lock:
                inside.append(name)
                seen.append(tuple(inside))
            time.sleep(0.002)
            with lock:
                inside.remove(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(100)))
    assert all(names == ("recording",) for names in seen if "recording" in names)
    assert any(names.count("run") > 1 for names in seen)


def test_calls_on_the_thread_that_records_do_not_wait_for_it():
    passed = []

    def nested() -> None:
        for outer in (recording.recording, recording.running):
            with outer(), recording.running():
                passed.append(outer)

    thread = threading.Thread(target=nested, daemon=True)
    thread.start()
    thread.join(10)
    assert passed == [recording.recording, recording.running]


def test_a_failed_run_lets_others_in():
    for gate in (recording.recording, recording.running):
        with pytest.raises(KeyError), gate():
            {}["missing"]
        with recording.recording():
            pass
