"""Checks of what a backend changes in the process that it runs in."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np

from isorun.testing.conformance.checks.base import Checks, proves
from isorun.testing.conformance.sample_models import dense

# Runs in a new process, whose state nothing has changed yet. Imports no pytest, which an environment does not have.
_USE = """
import contextlib, io, json, logging, os, random, signal, sys
import numpy as np
from isorun.isolation.worker.server import Server

shared = {
    "environment variables": lambda: dict(os.environ),
    "the working directory": os.getcwd,
    "NumPy's handling of floating-point errors": np.geterr,
    "the state of the global random generators": lambda: (random.getstate(), np.random.get_state()[1].tolist()),
    "signal handlers": lambda: [signal.getsignal(each) for each in sorted(signal.valid_signals())],
    "the level of logging": lambda: (logging.root.level, logging.root.manager.disable),
}
before = {what: look() for what, look in shared.items()}
request = json.loads(sys.stdin.read())
feeds = dict(np.load(request.pop("feeds")))
server = Server()
with contextlib.redirect_stdout(io.StringIO()) as printed:
    server.compile(0, **request)
    server.executables[0][1].run(None, feeds)
    server.report(0)
    server.close(0)
changed = [what for what, look in shared.items() if look() != before[what]]
print()
print(json.dumps({"changed": changed, "printed": printed.getvalue()}))
"""


class ProcessState(Checks):
    """State that all of a process shares."""

    @proves("process state")
    def test_process_state_is_not_changed(self) -> None:
        self.under_test.require_available()
        model = dense()
        lowered = self.under_test.lowered(model)
        feeds = self.under_test.folder / "feeds.npz"
        np.savez(feeds, x=model.feeds()["x"])
        request = {
            "name": self.under_test.name,
            "model": {**asdict(lowered), "path": str(lowered.path)},
            "config": asdict(self.under_test.config),
            "feeds": str(feeds),
        }
        found = self.under_test.run_script("compiles, runs and closes", _USE, stdin=json.dumps(request).encode())
        assert not found["changed"], f"it changed {' and '.join(found['changed'])}, which belong to the application"
        printed = found["printed"]
        assert not printed, f"it printed {printed[:60]!r} to stdout, which belongs to the application: use logging"
