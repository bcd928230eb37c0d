"""Finding a Python interpreter."""

import sys
import tomllib
from pathlib import Path

import pytest

import programs
from isorun.errors import EnvironmentBroken, InvalidArgument
from isorun.isolation.environments import interpreters

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
FULL = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes shell scripts; those in ``bin`` are the only programs on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def write(place: str, *lines: str) -> Path:
        return programs.write(tmp_path / place, "#!/bin/sh", *lines)

    return write


def prints(version: str, implementation: str = "CPython") -> str:
    return f"echo '[\"{implementation}\", [{version.replace('.', ', ')}]]'"


def test_minimum_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, interpreters.MIN_VERSION))


@pytest.mark.parametrize("python", [None, OWN, FULL, sys.executable])
def test_interpreter_of_this_process(program, python):
    found = interpreters.find(python)
    assert found.version == sys.version_info[:3]
    assert found.path.is_file()


@pytest.mark.parametrize("name", ["python3.42", "python3"])
@pytest.mark.parametrize("python", ["3.42", "3.42.1"])
def test_finds_a_version_on_the_path(program, name, python):
    path = program(f"bin/{name}", prints("3.42.1"))
    assert interpreters.find(python) == interpreters.Interpreter(path, (3, 42, 1))


def test_finds_a_program_on_the_path(program):
    path = program("bin/mine", prints("3.42.1"))
    assert interpreters.find("mine").path == path


def test_finds_a_version_of_uv(program, tmp_path):
    program("bin/uv", f'test "$1 $2" = "python find" && echo {tmp_path}/uv/python3.42')
    path = program("uv/python3.42", prints("3.42.2"))
    assert interpreters.find("3.42").path == path


def test_skips_an_interpreter_that_does_not_work(program):
    program("bin/uv", "echo no such version >&2; exit 2")
    program("bin/python3.42", "echo no library >&2", "exit 1")
    path = program("bin/python3", prints("3.42.0"))
    assert interpreters.find("3.42").path == path
    program("bin/python3", prints("3.42.0", "PyPy"))
    with pytest.raises(EnvironmentBroken, match=r"Python 3\.42 .*uv python install 3\.42"):
        interpreters.find("3.42")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("3.10", r"3\.10.*3\.11 or later"),
        ("3.42.7", r"Python 3\.42\.7 was not found"),
        ("odd", "odd is not a working CPython"),
        ("old", r"3\.9\.1 at .*3\.11 or later"),
    ],
)
def test_rejects(program, python, message):
    program("bin/odd", "echo hello")
    program("bin/old", prints("3.9.1"))
    program("bin/python3.42", prints("3.42.1"))
    with pytest.raises(EnvironmentBroken, match=message):
        interpreters.find(python)


@pytest.mark.parametrize("python", ["3", "/nowhere/python3"])
def test_rejects_what_is_neither_a_version_nor_an_executable(python):
    with pytest.raises(InvalidArgument, match=repr(python)):
        interpreters.find(python)
