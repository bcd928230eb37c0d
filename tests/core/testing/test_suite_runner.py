"""The suite in a process of its own, on the fakes that are shipped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import flaws
import isolation
from isorun.errors import IsorunError
from isorun.isolation import environments
from isorun.testing import fakes
from isorun.testing.suite import runner

DECLARED = {"discovery", "metadata"}
"""What a backend can have proved without computing anything."""


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    with fakes.installed():
        yield


def by_status(report: runner.Report) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in report.capabilities:
        found.setdefault(each.status, set()).add(each.name)
    return found


def test_slow_is_green():
    report = runner.run("fake-slow")
    assert report.passed
    skipped = {"threads", "device arrays", "model bert-3l", "model bert-6l", "model bert-base"}
    assert by_status(report)["skipped"] == skipped
    assert set(by_status(report)) == {"proved", "skipped"}
    assert all(check.message for check in report.checks if check.outcome == "skipped")


def test_echo_proves_nothing_that_takes_computing():
    report = runner.run("fake-echo")
    assert not report.passed
    status = by_status(report)
    assert status["proved"] == {
        *DECLARED,
        "provenance",
        "true placement",
        "closing",
        "leaks",
        "model file",
        "the program around it",
    }
    assert {"availability", "parity on the five masks", "dynamic shapes", "results", "binding"} <= status["failed"]
    assert {"true precision", "true device", "wrapped errors", "concurrent sessions"} <= status["failed"]


def test_failing_fails_wherever_it_runs():
    status = by_status(runner.run("fake-failing"))
    assert status["proved"] == {*DECLARED, "true placement", "true versions", "provenance"}
    assert {"availability", "results", "binding", "leaks", "closing"} <= status["failed"]


def test_a_failure_without_a_word_is_told_by_its_place(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(flaws.__file__).parents[1]))
    with fakes.installed(flaws.names()):
        report = runner.run("FailsWithoutAWord", only=["true device"])
    (capability,) = report.capabilities
    assert capability.status == "failed"
    assert re.search(r"AssertionError without a word, from .*flaws.discovery\.py:\d+", capability.reasons[0])


def test_failing_without_a_wrapper_is_told_where_to_put_one():
    report = runner.run("fake-failing", options={"wrapped": False}, only=["wrapped errors"])
    (capability,) = report.capabilities
    assert capability.status == "failed"
    assert "a RuntimeError came through as it is" in capability.reasons[0]
    assert "runtime_errors()" in capability.reasons[0]


@pytest.mark.parametrize(
    ("about", "capability"),
    [("precision", "true precision"), ("device", "true device"), ("versions", "true versions")],
)
def test_lying_fails_in_what_it_lies_about_alone(about, capability):
    claims = ["true precision", "true device", "true versions", "availability"]
    status = by_status(runner.run("fake-lying", options={"about": about}, only=claims))
    assert status["failed"] == {capability}
    assert status["proved"] == {*claims} - {capability}


def test_crashing_is_a_failure_of_the_check_and_not_of_the_suite():
    report = runner.run("fake-crashing")
    assert not report.passed
    failed = [check for check in report.checks if check.outcome == "failed"]
    assert [check.message for check in failed] == ["its process ended with SIGSEGV"] * runner.CRASHES
    assert by_status(report)["proved"] == DECLARED
    left = [check for check in report.checks if check.outcome == "not run"]
    assert len(left) > 50
    assert {check.message for check in left} == {"the process ended or hung 3 times before"}


def test_a_crash_in_one_place_leaves_the_others():
    report = runner.run("fake-crashing", options={"when": "close", "how": 7}, only=["metadata", "provenance"])
    assert by_status(report) == {"proved": {"metadata"}, "failed": {"provenance"}}
    assert report.checks[-1].message == "its process ended with exit code 7"


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path):
    with fakes.installed({"hangs": "hanging:Hangs"}) as folder:
        (folder / "hanging.py").write_text(f"""
import subprocess, time
import onnx
from isorun.graph import pipeline  # here, not in the check whose time is measured
from isorun.graph import describe  # here, not in the check whose time is measured
from isorun.graph.io import files  # here, not in the check whose time is measured
from isorun.testing.fakes import Right

class Hangs(Right):
    def compile(self, model, config):
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
""")
        report = runner.run("hangs", only=["model one-node"], seconds=5)
    (check,) = report.checks
    assert (check.outcome, check.message) == ("failed", "it did not end within 5 s")
    assert 5 <= check.seconds < 60
    assert_ends(int((tmp_path / "pid").read_text()))


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # dead; whoever adopts it has not looked yet
        time.sleep(0.05)
    pytest.fail(f"process {pid} lives on")


def test_a_crash_after_the_last_check_is_seen():
    with fakes.installed({"leaves-badly": "leaving:Leaves"}) as folder:
        (folder / "leaving.py").write_text("""
import atexit, os
from isorun.testing.fakes import Right

class Leaves(Right):
    def compile(self, model, config):
        atexit.register(os.abort)
        return super().compile(model, config)
""")
        report = runner.run("leaves-badly", only=["model one-node"])
    assert by_status(report) == {"proved": {"model one-node"}, "failed": {"closing"}}
    assert report.checks[-1].message == "after the last check, its process ended with SIGABRT"


def test_the_settings_of_the_folder_are_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not meant')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert runner.run("ort-cpu", only=["metadata"]).passed


def test_a_capability_that_there_is_not():
    with pytest.raises(IsorunError, match=r"There is no capability 'bindings'; did you mean 'binding'\?"):
        runner.run("ort-cpu", only=["leaks", "bindings"])


def test_progress_is_told():
    told = []
    runner.run("ort-cpu", only=["metadata"], progress=lambda *given: told.append(given))
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {total for *_, total in told} == {len(told)}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An isolated environment of this interpreter."""
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    return isolation.own_environment(tmp_path, "own")


def test_a_backend_in_an_environment_is_green(own: str):
    report = runner.run("ort-cpu", environment=own)
    assert report.passed, [check for check in report.checks if check.outcome != "passed"]
    assert report.as_dict()["environment"] == own
    assert by_status(report)["skipped"] == {"device arrays", "model bert-3l", "model bert-6l", "model bert-base"}


def test_a_crash_in_an_environment_is_no_crash_of_the_suite(tmp_path: Path, own: str):
    with fakes.installed() as folder:
        name = isolation.own_environment(tmp_path, "crashes", folder)
        report = runner.run("fake-crashing", environment=name, only=["metadata", "provenance", "true versions"])
    assert by_status(report) == {"proved": {"metadata", "provenance", "true versions"}}
    with fakes.installed() as folder:
        name = isolation.own_environment(tmp_path, "crashing", folder)
        report = runner.run("fake-crashing", environment=name, only=["model one-node"])
    (check,) = report.checks
    assert check.outcome == "failed"
    assert "SIGSEGV" in check.message
    assert check.message.startswith("WorkerDied")
