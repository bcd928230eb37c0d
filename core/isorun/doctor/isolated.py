"""Isolated environments: whether each is whole, and what is wrong with what is installed there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from isorun.doctor import installation
from isorun.errors import EnvironmentBroken
from isorun.isolation import environments
from isorun.isolation.environments import Environment
from isorun.types import Finding


def findings() -> Iterator[Finding]:
    """What is wrong with each environment."""
    for name in environments.names():
        try:
            environment = environments.get(name)
        except EnvironmentBroken as error:
            yield Finding(
                _subject(name),
                "error",
                "its record cannot be read",
                f"{error.__cause__}; isorun deletes no folder without a valid record, and what was installed there is "
                "not known: delete it, if it is an environment, and create it again",
                f"rm -r {shlex.quote(str(environments.root() / name))}",
            )
        else:
            yield from _inside(environment)


def _inside(environment: Environment) -> Iterator[Finding]:
    if missing := environment.missing():
        yield Finding(
            _subject(environment.name),
            "error",
            f"its interpreter is gone: there is no {missing}",
            "what it was made with was removed or moved; no worker starts there",
            environment.anew(),
        )
        return
    for found in installation.findings(environment):
        yield replace(found, subject=f"{_subject(environment.name)}, {found.subject}")


def _subject(name: str) -> str:
    return f"the environment {name}"
