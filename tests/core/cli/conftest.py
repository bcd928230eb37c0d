"""The command line in this process, and its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from isorun.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of standard output as JSON, where every number is one that JSON has."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


Isorun = Callable[..., Ran]


@pytest.fixture
def isorun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Isorun:
    """Runs ``isorun`` with arguments, in this process, as wide as a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
