"""Finding a Python."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from isorun.errors import EnvironmentBroken
from isorun.isolation.environments import interpreters

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
FULL = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Nothing but this process's own Python, a folder on the PATH, and a pyenv of no versions."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def program(place: str, *lines: str) -> Path:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return path

    return program


def says(version: str, implementation: str = "CPython") -> str:
    return f"echo '[\"{implementation}\", [{version.replace('.', ', ')}]]'"


def test_the_least_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, interpreters.LEAST))


@pytest.mark.parametrize("wanted", [None, OWN, FULL])
def test_the_version_that_runs_this(only, wanted):
    found = interpreters.find(wanted)
    assert found.version == sys.version_info[:3]
    assert found.path.is_file()
    assert not found.path.is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix


def test_a_path(only):
    assert interpreters.find(sys.executable).version == sys.version_info[:3]


def test_one_on_the_path(only):
    path = only("bin/python3.42", says("3.42.1"))
    assert interpreters.find("3.42") == interpreters.Interpreter(path, (3, 42, 1))
    assert interpreters.find("3.42.1").path == path
    assert interpreters.find("python3.42").path == path


def test_one_under_another_name(only):
    path = only("bin/python3", says("3.42.1"))
    assert interpreters.find("3.42").path == path


def test_one_of_pyenv(only):
    only("bin/shims/python3.42", "exit 127")
    path = only("pyenv/versions/3.42.0/bin/python", says("3.42.0"))
    assert interpreters.find("3.42").path == path


def test_one_of_uv(only, tmp_path):
    only("bin/uv", f'test "$1 $2" = "python dir" && echo {tmp_path}/uv')
    path = only("uv/cpython-3.42.2-linux/bin/python3.42", says("3.42.2"))
    assert interpreters.find("3.42").path == path


def test_one_that_does_not_run_is_passed_over(only):
    only("bin/python3.42", "echo no library >&2", "exit 1")
    only("bin/python3", says("3.42.0", "PyPy"))
    path = only("pyenv/versions/3.42.0/bin/python", says("3.42.0"))
    assert interpreters.find("3.42").path == path


def test_none_says_what_there_is_and_where_to_get_it(only):
    only("bin/python3.41", says("3.41.0"))
    with pytest.raises(EnvironmentBroken) as caught:
        interpreters.find("3.42")
    message = str(caught.value)
    assert message.startswith("There is no Python 3.42 here; found: ")
    assert FULL in message
    assert "3.41.0 at " in message
    assert "https://www.python.org/downloads" in message
    only("bin/pyenv", "exit 1")
    with pytest.raises(EnvironmentBroken, match=r"Get it: pyenv install 3\.42$"):
        interpreters.find("3.42")


def test_another_patch_is_another_version(only):
    only("bin/python3.42", says("3.42.1"))
    with pytest.raises(EnvironmentBroken, match=r"no Python 3\.42\.7 here"):
        interpreters.find("3.42.7")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("3.10", r"does not run on Python 3\.10: the worker needs 3\.11 or later"),
        ("2.7", "does not run on Python 2.7"),
        ("3", "'3' is no version of Python, such as 3.11, nor a program to run"),
        ("latest", "'latest' is no version of Python"),
        ("/nowhere/python3", "'/nowhere/python3' is no version"),
    ],
)
def test_what_cannot_be(only, wanted, message):
    with pytest.raises(EnvironmentBroken, match=message):
        interpreters.find(wanted)


def test_a_program_that_is_no_python_or_an_old_one(only):
    path = only("bin/odd", "echo hello")
    with pytest.raises(EnvironmentBroken, match="odd is no CPython that runs"):
        interpreters.find(str(path))
    old = only("bin/old", says("3.9.1"))
    with pytest.raises(EnvironmentBroken, match=r"does not run on 3\.9\.1 at .*old"):
        interpreters.find(str(old))
