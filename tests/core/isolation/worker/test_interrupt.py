"""Ctrl-C during a call to a worker: the session stays usable and no worker is left.

Each case runs in a child process: a late interrupt in the test process would end other tests.
"""

from pathlib import Path

import pytest

import programs

PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import isorun
from isolation import is_alive, wait_until
from isorun.isolation.worker.client import Connection

model, environment = sys.argv[1:]
interruptions = []

def interrupt_in(name, when=lambda *arguments: True):
    '''Send SIGINT soon after the main thread has entered a method of the connection.'''
    method = getattr(Connection, name)
    def entered(self, *arguments, **given):
        if not interruptions and when(*arguments):
            interruptions.append(threading.Timer(0.5, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]))
            interruptions[0].start()
        return method(self, *arguments, **given)
    setattr(Connection, name, entered)

def open_(**options):
    return isorun.Session(Path(model), "odd", environment=environment, options={"do": "sleep", **options})

def expect_interrupt(call):
    try:
        call()
    except KeyboardInterrupt:
        interruptions[0].join()
        return
    raise AssertionError("no KeyboardInterrupt")
"""

RUN = """
well = np.arange(4, dtype=np.float32)
session = open_()
session.run(None, {"x": well})
worker = session._resolved.worker.connection().process.pid
interrupt_in("run")
expect_interrupt(lambda: session.run(None, {"x": -well - 1}))
np.testing.assert_array_equal(session.run(None, {"x": well})[0], well)
assert session._resolved.worker.connection().process.pid == worker
session.close()
assert not is_alive(worker)
"""

COMPILE = """
started = []
original = Connection.__init__
def remember(self, process):
    started.append(process.pid)
    original(self, process)
Connection.__init__ = remember
interrupt_in("ask", lambda method, *_: method == "compile")
expect_interrupt(lambda: open_(**{"in": "compile"}))
assert len(started) == 1, started
assert wait_until(lambda: not is_alive(started[0]))
"""

PROVENANCE = """
session = open_()
worker = session._resolved.worker.connection().process.pid
interrupt_in("ask", lambda method, *_: method == "report")
os.kill(worker, signal.SIGSTOP)  # it does not reply
expect_interrupt(lambda: session.provenance)
os.kill(worker, signal.SIGCONT)
assert session.provenance.device == "odd"
assert session._resolved.worker.connection().process.pid == worker
session.close()
"""


@pytest.mark.parametrize("script", [RUN, COMPILE, PROVENANCE], ids=["run", "compile", "provenance"])
def test_ctrl_c(tmp_path: Path, model: bytes, fakes: str, script: str) -> None:
    (tmp_path / "model.onnx").write_bytes(model)
    programs.printed(PRELUDE + script, tmp_path / "model.onnx", fakes)
