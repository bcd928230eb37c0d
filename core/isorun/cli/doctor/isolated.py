"""Isolated environments: whether each is complete, and the problems of what is installed there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from isorun.cli.doctor import installation
from isorun.errors import EnvironmentBroken
from isorun.isolation import environments
from isorun.types import Finding


def findings() -> Iterator[Finding]:
    """The problems of each environment."""
    for name in environments.names():
        subject = f"the environment {name}"
        try:
            environment = environments.get(name)
        except EnvironmentBroken as error:
            yield Finding(
                subject,
                "error",
                "its record cannot be read",
                f"{error.__cause__}. isorun deletes no folder without a valid record; if the folder is an environment, "
                "delete it and create it again",
                f"rm -r {shlex.quote(str(environments.root() / name))}",
            )
            continue
        if missing := environment.missing():
            yield Finding(
                subject,
                "error",
                f"its interpreter is missing: {missing}",
                "the Python that it was created with was removed or moved",
                environment.commands(),
            )
            continue
        for finding in installation.findings(environment):
            yield replace(finding, subject=f"{subject}, {finding.subject}")
