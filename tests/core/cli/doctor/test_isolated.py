"""Broken environments."""

import json
from pathlib import Path

import pytest

import isolation
import programs
import sites
from isorun.cli.doctor import isolated
from isorun.isolation import environments


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "environments"))
    return tmp_path / "environments"


def make(root: Path, name: str, interpreter: str | None = None) -> None:
    (root / name / "bin").mkdir(parents=True)
    (root / name / "environment.json").write_text(json.dumps({"python": "3.11.7", "install": ["light>=1"]}))
    if interpreter is not None:
        programs.write(root / name / "bin" / "python", interpreter)


AGAIN = "isorun env remove e && isorun env create e --python 3.11 --install 'light>=1'"


def test_no_environments(root):
    assert list(isolated.findings()) == []


def test_interpreter_that_is_missing(root):
    make(root, "e")
    (root / "e" / "bin" / "python").symlink_to("/nowhere/python3.11")
    (finding,) = isolated.findings()
    assert (finding.subject, finding.severity) == ("the environment e", "error")
    assert "/nowhere/python3.11" in finding.what
    assert finding.command == AGAIN


def test_interpreter_that_does_not_work(root):
    make(root, "e", "#!/bin/sh\necho 'libpython3.11.so: not there' >&2\nexit 127\n")
    (finding,) = isolated.findings()
    assert finding.subject == "the environment e, its interpreter"
    assert "exited with code 127 while starting" in finding.what
    assert (finding.why, finding.command) == ("libpython3.11.so: not there", AGAIN)


def test_record_that_cannot_be_read(root):
    make(root, "e", "")
    (root / "e" / "environment.json").write_text("{")
    (finding,) = isolated.findings()
    assert finding.what == "its record cannot be read"
    assert finding.command == f"rm -r {root / 'e'}"


def test_problem_of_an_installed_backend(root, tmp_path, monkeypatch):
    sites.examine_only(monkeypatch, "boom")
    sites.install(tmp_path / "site", "boom-dist", "1.0", {"boom.py": "import gone"}, {"boom": "boom:Boom"})
    name = isolation.own_environment(root, "own", tmp_path / "site")
    before = sorted(root.rglob("*"))
    (finding,) = isolated.findings()
    assert finding.subject == f"the environment {name}, the backend boom"
    assert sorted(root.rglob("*")) == before
