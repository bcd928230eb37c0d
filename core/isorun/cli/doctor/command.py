"""Diagnose this installation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from isorun.cli import CHECK_FAILED, console, options
from isorun.types import Finding

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    operators: Annotated[
        bool,
        typer.Option("--operators", help="Also test the known faults of the installed runtimes, which takes minutes."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Diagnose this installation: packages, libraries, the cache, environments.

    Each finding has a command that fixes it. Nothing is changed. The exit code is 1 if there are findings.
    """
    from isorun.cli.doctor import examine

    with console.working("Checking backends, packages and environments"):
        findings = examine(operators=operators)
    if as_json:
        console.json_out([asdict(finding) for finding in findings])
    elif findings:
        print("\n\n".join(map(_text, findings)))
    else:
        print("No problems found")
    if findings:
        raise typer.Exit(CHECK_FAILED)


def _text(finding: Finding) -> str:
    return f"{finding.severity}: {finding.subject}: {finding.what}\n  {finding.why}\n  {finding.command}"
