"""The suite in a child process, on the fakes that are shipped."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import flaws
import isolation
from isorun.errors import IsorunError
from isorun.isolation import environments
from isorun.types.faults import KnownFailure
from isorun_conformance import fakes, runner
from isorun_conformance.result import CheckResult, Report, with_known_failures


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with fakes.installed():
        yield


def by_status(report: Report) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in report.capabilities:
        found.setdefault(each.status, set()).add(each.name)
    return found


@pytest.mark.long
def test_backend_without_a_flaw_passes(flawed: None):
    report = runner.run("honest")
    assert report.passed, report.causes
    skipped = {"threads", "options", "determinism", "static shapes", "device arrays", "true device times"}
    skipped |= {"model bert-3l", "model bert-6l", "model bert-base"}
    assert by_status(report)["skipped"] == skipped
    assert set(by_status(report)) == {"proved", "skipped"}
    assert all(check.message for check in report.checks if check.outcome == "skipped")


@pytest.fixture
def flawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(flaws.__file__).parents[1]))
    with fakes.installed(flaws.names()):
        yield


def test_backend_that_computes_nothing_fails():
    proved, failed = {"discovery", "metadata"}, {"availability", "results", "binding", "true device", "wrapped errors"}
    report = runner.run("fake-echo", only=[*proved, *failed])
    assert not report.passed
    assert by_status(report) == {"proved": proved, "failed": failed}


@pytest.mark.long
def test_one_cause_is_reported_once(flawed: None):
    (cause,) = runner.run("doubles", only=["availability", "results", "model one-node"]).causes
    assert cause[0].name == "test_available_backend_computes"
    assert len(cause) > 5


def test_failures_with_different_causes_are_reported_apart(flawed: None):
    causes = runner.run("unpacks-scalars", only=["types", "availability", "wrapped errors"]).causes
    assert [check.name for cause in causes for check in cause] == ["test_outputs_of_other_types_than_the_inputs"]


def test_known_failure_is_expected_and_nothing_else(flawed: None):
    check = "test_damaged_file_is_rejected_with_the_cause"
    known = {"reason": "it hides it", "kind": "never", "exception": "AssertionError", "reference": "none: by design"}
    only = ["wrapped errors", "metadata"]
    report = runner.run("forgets-the-cause-on-loading", only=only, known_failures={check: known})
    assert report.passed
    assert by_status(report) == {"proved": {"metadata"}, "known failure": {"wrapped errors"}}
    (declared,) = [result.known for result in report.checks if result.name == check]
    assert declared is not None
    assert (declared.kind, declared.reference) == ("never", "none: by design")
    report = runner.run("honest", only=["wrapped errors"], known_failures={check: KnownFailure(**known)})
    assert not report.passed
    assert "it passed, but is declared as a known failure (it hides it)" in report.causes[0][0].message
    with pytest.raises(IsorunError, match=r"'test_capabilities_valid'.*'test_capabilities_are_valid'"):
        runner.run("honest", only=["metadata"], known_failures={"test_capabilities_valid": known})


def test_models_refused_in_one_place_for_different_operators_are_different_causes() -> None:
    refused = [
        CheckResult(
            f"test_{name}", "a", "failed", message=f"UnsupportedModel: no {name}\nCause: NotThere, from engine.py:56"
        )
        for name in ("Neg", "Neg", "TopK")
    ]
    assert [len(checks) for checks in Report("x", None, {}, checks=refused).causes] == [2, 1]


def test_capability_is_not_proved_by_a_check_that_could_not_tell() -> None:
    passed = CheckResult("test_a", "threads", "passed")
    for message, status in (("undecided: too busy", "skipped"), ("needs two cores", "proved")):
        report = Report("x", None, {}, checks=[passed, CheckResult("test_b", "threads", "skipped", message=message)])
        (capability,) = report.capabilities
        assert (capability.status, capability.reasons) == (status, (message,))


def test_known_failure_with_another_exception_fails():
    known = KnownFailure(
        reason="no bits", kind="not_yet", exception="UnsupportedModel", reference="https://example.org"
    )
    checks = [
        CheckResult("test_a[x]", "a", "failed", message="off", exceptions=("WrongOutputs", "AssertionError")),
        CheckResult("test_b", "b", "failed", message="no", exceptions=("UnsupportedModel", "IsorunError")),
        CheckResult("test_c", "c", "failed", message="it was killed", exceptions=("crash",)),
        CheckResult("test_d", "d", "skipped", message="not declared"),
    ]
    names = [check.name for check in checks]
    compared = with_known_failures(checks, dict.fromkeys(("test_a", "test_b", "test_c", "test_d"), known), names)
    assert [check.outcome for check in compared] == ["failed", "known failure", "failed", "skipped"]
    assert compared[0].message == "off\nthe known failure is declared with UnsupportedModel (no bits), got WrongOutputs"
    assert "got crash" in compared[2].message
    wider = replace(known, exception="AssertionError")
    assert with_known_failures(checks, {"test_a": wider}, names)[0].outcome == "known failure"


def test_crash_that_is_known_is_no_failure(monkeypatch: pytest.MonkeyPatch):
    """Nor does it count among those after which the suite gives up."""
    monkeypatch.setattr(runner, "CRASHES", 1)
    known = KnownFailure(reason="it crashes", kind="not_yet", exception="crash", reference="https://example.org")
    only = ["model one-node", "model few-nodes", "metadata"]
    report = runner.run("fake-crashing", only=only, known_failures={"test_models_of_every_size": known})
    assert by_status(report) == {"proved": {"metadata"}, "known failure": {"model one-node", "model few-nodes"}}
    assert report.passed


def test_changes_of_what_children_inherit_are_found_after_other_checks(flawed: None):
    """What earlier checks have let the backend change is not what it is compared with."""
    report = runner.run("changes-what-is-inherited", only=["model one-node", "process state"])
    (message,) = [check.message for check in report.checks if check.outcome == "failed"]
    for what in ("environment variables (ENGINE_HOME)", "the file mode mask", "the priority"):
        assert f"{what} (in compile())" in message
    assert "resource limits (in " in message  # an earlier check where only root may raise them again


def test_failure_without_a_message_names_the_line(flawed: None):
    report = runner.run("fails-without-message", only=["true device"])
    (capability,) = report.capabilities
    assert capability.status == "failed"
    assert "AssertionError" in capability.reasons[0]
    assert f"{Path('flaws', 'discovery.py')}:" in capability.reasons[0]


def test_crash_fails_the_check_and_not_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # looked up again, and afterwards what it was
    report = runner.run("fake-crashing")
    assert not list(tmp_path.iterdir())
    assert not report.passed
    failed = [check.message for check in report.checks if check.outcome == "failed"]
    assert ["SIGSEGV" in message for message in failed] == [True] * runner.CRASHES
    assert by_status(report)["proved"] == {"discovery", "metadata"}
    remaining = [check for check in report.checks if check.outcome == "not run"]
    assert len(remaining) > 50
    assert all("3 times" in check.message for check in remaining)


def test_checks_after_a_crash_still_run():
    report = runner.run("fake-crashing", options={"when": "close", "how": 7}, only=["metadata", "provenance"])
    assert by_status(report) == {"proved": {"metadata"}, "failed": {"provenance"}}
    assert "code 7" in report.checks[-1].message


def test_hanging_check_is_killed_with_all_that_it_started(tmp_path: Path):
    with fakes.installed({"hangs": "hanging:Hangs"}) as folder:
        (folder / "hanging.py").write_text(f"""
import subprocess, time
import onnx
from isorun.graph import pipeline  # here, not in the check, which has a time limit
from isorun.graph import model_info  # here, not in the check, which has a time limit
from isorun.graph.io import files  # here, not in the check, which has a time limit
from isorun_conformance.fakes import Right

class Hangs(Right):
    def compile(self, model, config):
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
""")
        report = runner.run("hangs", only=["model one-node"], seconds=5)
    (check,) = report.checks
    assert check.outcome == "failed"
    assert "within 5 s" in check.message
    assert 5 <= check.seconds < 60
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert isolation.wait_until(lambda: not isolation.is_alive(pid))


def test_crash_after_the_last_check_is_a_failure():
    with fakes.installed({"crashes-at-exit": "crashing_at_exit:Crashes"}) as folder:
        (folder / "crashing_at_exit.py").write_text("""
import atexit, os
from isorun_conformance.fakes import Right

class Crashes(Right):
    def compile(self, model, config):
        atexit.register(os.abort)
        return super().compile(model, config)
""")
        report = runner.run("crashes-at-exit", only=["model one-node"])
    assert by_status(report) == {"proved": {"model one-node"}, "failed": {"closing"}}
    assert "SIGABRT" in report.checks[-1].message


def test_progress_is_reported_and_pytest_settings_of_the_user_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('the conftest.py of the user was imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    calls = []
    assert runner.run("ort-cpu", only=["metadata"], progress=lambda *arguments: calls.append(arguments)).passed
    assert [done for _, done, _ in calls] == list(range(len(calls)))  # called for every check
    assert {total for *_, total in calls} == {len(calls)}


def test_unknown_capability_is_rejected_with_the_nearest():
    with pytest.raises(IsorunError, match=r"'bindings'.*'binding'"):
        runner.run("ort-cpu", only=["leaks", "bindings"])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An isolated environment of this interpreter."""
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    return isolation.own_environment(tmp_path, "own")


@pytest.mark.parametrize("only", [["binding", "process state"], pytest.param([], marks=pytest.mark.long)])
@pytest.mark.long
def test_backend_in_an_environment_passes(own: str, only: list[str]):
    report = runner.run("ort-cpu", environment=own, only=only)
    assert report.passed, [check for check in report.checks if check.outcome != "passed"]
    assert report.as_dict()["environment"] == own
    skipped = {"device arrays", "true device times", "model bert-3l", "model bert-6l", "model bert-base"}
    assert by_status(report).get("skipped", set()) == (set() if only else skipped)


@pytest.mark.long
def test_crash_in_an_environment_fails_the_check(tmp_path: Path, own: str):
    with fakes.installed() as folder:
        name = isolation.own_environment(tmp_path, "crashes", folder)
        report = runner.run("fake-crashing", environment=name, only=["metadata", "provenance", "model one-node"])
    assert by_status(report) == {"proved": {"metadata", "provenance"}, "failed": {"model one-node"}}
    message = report.checks[0 if report.checks[0].outcome == "failed" else -1].message
    assert message.startswith("WorkerDied")
    assert "SIGSEGV" in message
