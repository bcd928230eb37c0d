"""Sessions and processes that fork: what of a session is of no use there says so, and nothing waits for ever."""

import copy
import os
import pickle

import numpy as np
import pytest

import backends
import isolation
import isorun
import programs
import tiny
from isorun.isolation import environments

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# The child ends by os._exit: onnxruntime has threads of its own, which an orderly end would wait for.
START = """
import asyncio, gc, os, signal, sys, threading, warnings
import isorun, tiny
warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
feeds = tiny.feeds()
row = {name: array[:1] for name, array in feeds.items()}
path, backend, environment = sys.argv[1:]
session = isorun.Session(path, backend, environment=environment or None)
binding = session.io_binding()
binding.bind_output("pooler_output")
for name, array in feeds.items():
    binding.bind_cpu_input(name, array)

def arun():
    return asyncio.run(session.arun(None, row, max_tokens=1000))

# Threads of every kind: of the runtime, of submit, of arun's batches.
calls = {
    "run": lambda: session.run(None, feeds),
    "submit": lambda: session.submit(None, feeds).result(),
    "arun": arun,
    "map": lambda: list(session.map([row, row])),
    "binding": lambda: session.run_with_iobinding(binding),
    "provenance": lambda: session.provenance,
}
for name in ("run", "submit", "arun", "map", "binding"):
    calls[name]()

def in_child(work):
    child = os.fork()
    if not child:
        signal.alarm(120)
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

REFUSED = """
closed = isorun.Session(path, backend)
bound = closed.io_binding()
bound.bind_output("pooler_output")
for name, array in feeds.items():
    bound.bind_cpu_input(name, array)
closed.run_with_iobinding(bound)
closed.close()

def child():
    global session, closed, bound
    for name, call in calls.items():
        try:
            call()
        except isorun.IsorunError as error:
            assert "fork" in str(error), (name, error)
        else:
            raise AssertionError(name)
    session.close()
    try:
        closed.run(None, feeds)
    except isorun.IsorunError as error:
        assert "closed" in str(error), error
    with isorun.Session(path, backend) as another:
        assert len(another.run(None, feeds)) == 2
    session = closed = bound = None  # what is left of the runtime must not wait for the parent's threads
    gc.collect()

in_child(child)
for call in calls.values():
    call()
session.close()
"""

WITH_A_WORKER = """
def child():
    for call in calls.values():
        call()
    session.close()

in_child(child)
for call in calls.values():
    call()
session.close()
"""


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_a_fork_is_refused_the_session_and_may_open_another(bert, backend):
    programs.printed(START + REFUSED, bert, backend, "")


def test_a_fork_of_a_session_with_a_worker_has_all_of_it(bert):
    environment = isolation.own_environment(environments.root(), "sessions")
    programs.printed(START + WITH_A_WORKER, bert, "ort-cpu", environment)


FIRST_SUBMIT = """
import sys
import isorun, tiny
with isorun.Session(sys.argv[1], "ort-cpu", environment=sys.argv[2]) as session:
    session.run(None, tiny.feeds())
    before = {*sys.modules}
    session.submit(None, tiny.feeds()).result()
    print(sorted({*sys.modules} - before))
"""


def test_the_first_submit_of_a_session_with_a_worker_imports_nothing(bert):
    """A fork meanwhile would leave the import unfinished in the child."""
    environment = isolation.own_environment(environments.root(), "sessions")
    assert programs.printed(FIRST_SUBMIT, bert, environment) == "[]\n"


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda call: call.__name__)
def test_sessions_cannot_be_pickled_or_copied(bert, any_backend, again):
    with isorun.Session(bert, any_backend) as session:
        with pytest.raises(TypeError, match="Open one in each process"):
            again(session)
        assert np.isfinite(session.run(None, tiny.feeds())[0]).all()
