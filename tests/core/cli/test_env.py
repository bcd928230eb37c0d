"""``isorun env``, and commands that take an environment."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isolation
import programs
from isorun.cli.probe import probe_in_process
from isorun.isolation import environments


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only environment, with the interpreter of the tests."""
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "environments"))
    return isolation.own_environment(tmp_path / "environments", "own")


def test_no_environments(isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    assert isorun("env", "list").out == f"No environments in {tmp_path}\n"
    assert isorun("env", "list", "--json").json == []


@pytest.mark.long
def test_create_list_remove(isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing for real is tested in tests/core/isolation/environments."""
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(
        "isorun.isolation.environments.install.make", lambda folder, *_: isolation.use_own_interpreter(folder)
    )
    created = isorun("env", "create", "light", "--install", "tabulate==0.9.0")
    assert (created.code, created.err) == (0, "")
    rows = dict(line.split(None, 1) for line in created.out.splitlines())
    assert (rows["environment"], rows["folder"]) == ("light", str(tmp_path / "light"))
    (listed,) = isorun("env", "list", "--json").json
    assert (listed["name"], listed["install"]) == ("light", ["tabulate==0.9.0"])
    assert {"ort-cpu", "openvino", "reference"} <= set(listed["backends"])
    assert isorun("env", "create", "light", "--install", "tabulate==0.9.0", "--json").json == listed
    assert isorun("env", "remove", "light").out == "Removed light\n"
    assert not (tmp_path / "light").exists()


def test_list_shows_broken_environments(isorun: Callable[..., Any], own: str, tmp_path: Path) -> None:
    broken = tmp_path / "environments" / "broken"
    programs.write(broken / "bin" / "python", "#!/bin/sh", "exit 5")
    (broken / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    (tmp_path / "environments" / "gone").mkdir()
    (tmp_path / "environments" / "gone" / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    ran = isorun("env", "list")
    assert ran.code == 0
    assert own in ran.out
    assert "broken is broken: The worker of the environment 'broken' exited with code 5" in ran.out
    assert "gone is broken: The interpreter of the environment 'gone' is missing" in ran.out
    troubles = {entry["name"]: entry.get("trouble") for entry in isorun("env", "list", "--json").json}
    assert troubles[own] is None
    assert "code 5" in troubles["broken"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "e", "--python", "3.9"), 3, "isorun does not support Python 3.9"),
        (("create", "e", "--python", "/missing/python"), 2, "python must be a version"),
        (("create", "e", "--python", "3.42"), 3, "Python 3.42 was not found"),
        (("create", "a/b"), 2, "Invalid environment name"),
        (("remove", "e"), 2, "environment 'e'"),
    ],
)
def test_rejects(isorun: Callable[..., Any], own: str, arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = isorun("env", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert environments.names() == [own]


def test_backends_of_an_environment(isorun: Callable[..., Any], own: str) -> None:
    listed = {row["name"]: row for row in isorun("backends", "--environment", own, "--json").json}
    assert {"ort-cpu", "openvino"} <= set(listed)
    assert listed["ort-cpu"]["status"] == "available"
    (result,) = probe_in_process("ort-cpu", ["fp32"], own)
    assert result.ok
    assert isorun("backends", "--environment", "nowhere").code == 2


def test_run_in_an_environment(isorun: Callable[..., Any], own: str, bert: Path, tmp_path: Path) -> None:
    import numpy as np

    import tiny

    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    arguments = ("run", bert, "--backend", "ort-cpu", "--feeds", tmp_path / "feeds.npz")
    isolated = isorun(*arguments, "--environment", own, "--json").json
    assert isolated["provenance"]["environment"]["name"] == own
    in_process = isorun(*arguments, "--json").json
    assert (isolated["outputs"], in_process["provenance"]["environment"]) == (in_process["outputs"], {})
    assert f"in the environment {own}" in isorun(*arguments, "--environment", own).out
    wrong = isorun(*arguments[:2], "--backend", "ort-cup", *arguments[4:], "--environment", own)
    assert wrong.code == 2
    assert f"in the environment '{own}'; did you mean 'ort-cpu'?" in wrong.err
    assert os.environ["ISORUN_CACHE_DIR"]
