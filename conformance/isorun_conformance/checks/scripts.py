"""Checks of a script that uses a session, in a process of its own: how it ends, interrupts, its child processes."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.sample_models import SampleModel, dense

_SCRIPT = """
import json, os, signal, sys, threading, time, numpy as np, isorun
from pathlib import Path
from isorun.system.process_usage import family
path, name, feeds, settings = sys.argv[1:]
feeds = dict(np.load(feeds))
others = {key: -array for key, array in feeds.items()}
opened = lambda: isorun.Session(path, name, **json.loads(settings))
equal = lambda outputs, expected: all(np.allclose(*pair) for pair in zip(outputs, expected))
"""
_WITHOUT_CLOSE = """
session = opened()
session.run(None, feeds)
print(1)
"""
_INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background ignores
session = opened()
expected = [session.run(None, fed) for fed in (feeds, others)]
ends = []
for seconds in (0.1, 0.2, 0.3):
    alarm = threading.Timer(seconds, os.killpg, (os.getpgrp(), signal.SIGINT))  # as a terminal does
    alarm.start()
    end, how = time.monotonic() + 5, "nothing"
    try:
        while time.monotonic() < end:
            session.run(None, feeds)
    except BaseException as error:
        how = type(error).__name__
        alarm.cancel()
    alarm.join()
    ends.append(how)
# First other feeds than those of the interrupted run, whose answer may still be on its way.
try:
    after = [session.run(None, fed) for fed in (others, feeds)]
    problem = "" if equal(after[0], expected[1]) and equal(after[1], expected[0]) else "is wrong"
except isorun.IsorunError as error:
    problem = f"raised {type(error).__name__}: {error}"
print(json.dumps([ends, problem]))
"""
_LEAVING = """
def state(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"  # it has ended

def left(killed):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()  # who waits for this script kills its group
        session = opened()
        session.run(None, feeds)
        os.write(writing, json.dumps(family()[1:]).encode())
        os.close(writing)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit()
    os.close(writing)
    children = json.loads(os.read(reading, 10000) or "[]")  # nothing if the session could not be opened
    end = time.monotonic() + 10
    while time.monotonic() < end and any(state(child) != "Z" for child in children):
        time.sleep(0.05)
    remaining = [child for child in children if state(child) != "Z"]
    for child in remaining:
        os.kill(child, signal.SIGKILL)
    return len(children), len(remaining)

print(json.dumps([left(False), left(True)]))
"""
_WITHOUT_CHILDREN = """
session = opened()
expected = [session.run(None, fed) for fed in (feeds, others)]
children = family()[1:]
for child in children:
    os.kill(child, signal.SIGKILL)
time.sleep(0.2)
try:
    how = "right" if equal(session.run(None, feeds), expected[0]) else "wrong"
except isorun.IsorunError:
    how = "raised"
print(json.dumps([len(children), how]))
"""


class Scripts(Checks):
    """Scripts, without ``if __name__ == "__main__"``."""

    @proves("closing")
    def test_process_ends_without_close(self, seconds: float = 60) -> None:
        """A script need not close its sessions."""
        assert self._run("does not close its session", dense("one-node"), _WITHOUT_CLOSE, seconds) == 1

    @proves("closing")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists child processes")
    def test_child_processes_end_with_their_process(self) -> None:
        """Also if it is killed, as by the system when memory runs out."""
        left = self._run("ends, and is killed,", dense("one-node"), _LEAVING, 120)
        for (children, remaining), how in zip(left, ("ended without close()", "was killed"), strict=True):
            if not children:
                pytest.skip(f"{DOES_NOT_APPLY}: it starts no processes")
            assert not remaining, (
                f"{remaining} of its {children} child processes still ran 10 s after the process of the session {how}"
            )

    @proves("recovery")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists child processes")
    def test_run_without_its_child_processes_ends(self, seconds: float = 60) -> None:
        """As after a crash of the engine in one of them: the run raises, or is right."""
        doing = "runs a model after the backend's child processes were killed"
        children, how = self._run(doing, dense("one-node"), _WITHOUT_CHILDREN, seconds)
        if not children:
            pytest.skip(f"{DOES_NOT_APPLY}: it starts no processes")
        assert how != "wrong", "a run after its child processes were killed is wrong; it must raise BackendFailed"

    @proves("interrupts")
    def test_interrupt_ends_a_run_as_itself(self) -> None:
        """Ctrl-C is no failure of the backend, and no run after it is wrong."""
        ends, problem = self._run("is interrupted", dense("heavy"), _INTERRUPTED, 120)
        others = [how for how in ends if how != "KeyboardInterrupt"]
        assert not others, f"an interrupt during a run (Ctrl-C) must raise KeyboardInterrupt, got {others[0]}"
        assert not problem, (
            f"a run after an interrupted one (Ctrl-C, which a terminal sends to child processes too) {problem}"
        )

    def _run(self, doing: str, model: SampleModel, code: str, seconds: float) -> Any:
        """The last line, as JSON, that code prints after :data:`_SCRIPT`."""
        self.under_test.require_available()
        path, feeds = model.path(self.under_test.folder), self.under_test.folder / f"{model}-of-a-script.npz"
        np.savez(feeds, **model.feeds())  # type: ignore[arg-type]
        under_test = self.under_test
        settings = {name: getattr(under_test, name) for name in ("options", "device", "environment")}
        arguments = (str(path), under_test.name, str(feeds), json.dumps(settings))
        return under_test.run_script(doing, _SCRIPT + code, *arguments, seconds=seconds, here=True)
