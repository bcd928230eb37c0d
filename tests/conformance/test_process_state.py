"""Each part of a process's state is seen to change."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import flaws

# One process imports; a fork of it makes one change, so that no test has to undo it.
SCRIPT = """
import gc, json, os, sys
from flaws.process_state import ACTS
from isorun_conformance.process_state import changed, look
gc.set_threshold(10**9)  # a collection in between would end what is not referenced any more
for what, acts in ACTS.items():
    for number, act in enumerate(acts):
        reading, writing = os.pipe()
        if os.fork() == 0:
            look()
            before = look()
            unchanged = changed(before, look())
            act()
            os.write(writing, json.dumps([unchanged, changed(before, look())]).encode())
            os._exit(0)
        os.close(writing)
        os.wait()
        print(json.dumps([what, number, *json.loads(os.read(reading, 10000))]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the changes are those of Linux")
def test_every_change_is_seen_and_nothing_else() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(flaws.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, ran.stderr
    assert [result for result in results if result[2]] == []
    names = [{each.partition(" (")[0] for each in seen} for *_, seen in results]
    assert [result for result, seen in zip(results, names, strict=True) if result[0] not in seen] == []
    assert ["the state of the global random generators (numpy.random)"] in [seen for *_, seen in results]
    from isorun_conformance.process_state import STATE

    assert {what for what, *_ in results} == set(STATE)
