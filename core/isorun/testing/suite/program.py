"""Checks of what a backend does to the program that it runs in, in a process that has done nothing yet."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict

import numpy as np

from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import dense
from isorun.testing.suite.subject import Checks

_SECONDS = 300

# What every part of a program shares. Python's own names alone: an environment of a backend has no pytest.
_TRY = """
import contextlib, io, json, logging, os, random, signal, sys
import numpy as np
from isorun.isolation.worker.server import Server

shared = {
    "environment variables": lambda: dict(os.environ),
    "the working folder": os.getcwd,
    "what NumPy does about floating-point errors": np.geterr,
    "the random numbers of others": lambda: (random.getstate(), np.random.get_state()[1].tolist()),
    "what a signal does": lambda: [signal.getsignal(each) for each in sorted(signal.valid_signals())],
    "the level of logging": lambda: (logging.root.level, logging.root.manager.disable),
}
before = {what: look() for what, look in shared.items()}
given = json.loads(sys.stdin.read())
feeds = dict(np.load(given.pop("feeds")))
server = Server()
with contextlib.redirect_stdout(io.StringIO()) as printed:
    server.compile(0, **given)
    server.executables[0][1].run(None, feeds)
    server.report(0)
    server.close(0)
changed = [what for what, look in shared.items() if look() != before[what]]
print()
print(json.dumps({"changed": changed, "printed": printed.getvalue()}))
"""


class Program(Checks):
    """The program around a backend."""

    @proves("the program around it")
    def test_what_all_of_a_program_share_stays_as_it_was(self) -> None:
        self.subject.require_available()
        sample = dense()
        model = self.subject.as_it_is(sample)
        feeds = self.subject.folder / "feeds.npz"
        np.savez(feeds, x=sample.feeds()["x"])
        given = {
            "name": self.subject.name,
            "model": {**asdict(model), "path": str(model.path)},
            "config": asdict(self.subject.config),
            "feeds": str(feeds),
        }
        python, variables = self.subject.interpreter()
        ran = subprocess.run(
            [python, "-P", "-c", _TRY],
            input=json.dumps(given),
            env=variables,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, f"a process that compiles, runs and closes ends badly: {ran.stderr.strip()[-500:]}"
        saw = json.loads(ran.stdout.splitlines()[-1])
        assert not saw["changed"], f"it changed {' and '.join(saw['changed'])}, which every part of a program shares"
        said = saw["printed"]
        assert not said, f"it printed {said[:60]!r}: standard output is the program's, so take the logging module"
