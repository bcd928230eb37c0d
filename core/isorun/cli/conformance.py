"""Check that a backend keeps its contract, and report which capabilities were proved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from isorun.cli import console
from isorun.cli.run import option_settings
from isorun.errors import BackendUnavailable
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import registry

if TYPE_CHECKING:
    from isorun.testing.conformance.result import CheckResult, Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLOURS = {"proved": "green", "failed": "bold red", "not run": "red", "skipped": "yellow"}
_DOES_NOT_APPLY = "does not apply"  # concerns backends that declare something else; not worth a line in a table


@app.command()
def conformance(
    backend: Annotated[str, typer.Argument(help="The name of the backend.", show_default=False)],
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run in this isolated environment (see `isorun env`).")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the backend, for every check. Repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CAPABILITY", help="Run the checks of this capability only. Repeatable.")
    ] = None,
    big: Annotated[bool, typer.Option("--big", help="Also run bert-3l to bert-base, which takes minutes.")] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", min=1, help="The time limit of a check. Default: 300, with --big 1800.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a backend keeps its contract, and report which capabilities were proved.

    The checks run in a child process: a check that crashes or hangs has failed, and the others still run. Checks of
    what the backend does not declare are skipped, with the reason. Exits with 1 if a check failed.
    """
    from isorun.testing.conformance import runner

    settings = option_settings(option or [])
    _require(backend, environment)
    with _progress() as progress:
        report = runner.run(
            backend,
            environment=environment,
            options=settings,
            big=big,
            only=only or [],
            seconds=seconds,
            progress=progress,
        )
    if as_json:
        console.json_out(report.as_dict())
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _require(name: str, environment: str | None) -> None:
    """Refuse a backend that is unavailable, which every check would report again."""
    if environment is None:
        availability = registry.availability(registry.get(name))
    else:
        with closing(Worker(environments.get(environment))) as worker:
            availability = worker.get(name).availability()
    if not availability.ok:
        raise BackendUnavailable(name, availability.reason, availability.remedy)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the current check on standard error, if that is a terminal."""
    terminal = console.stderr()
    if not terminal.is_terminal:
        yield lambda *_: None
        return
    with terminal.status("Starting") as status:
        yield lambda check, done, total: status.update(f"{done} of {total}  {check}")


def _by_message(checks: Iterable[CheckResult]) -> Iterable[list[CheckResult]]:
    """Checks grouped by message, paths aside: a backend that cannot load a model fails nearly all."""
    groups: dict[str, list[CheckResult]] = {}
    for check in checks:
        groups.setdefault(re.sub(r"\S*/\S+", "", check.message), []).append(check)
    return groups.values()


def _show(report: Report) -> None:
    from rich.text import Text

    rows = []
    for each in report.capabilities:
        total = each.passed + each.failed + each.not_run
        reasons = () if each.status == "failed" else each.reasons  # failures follow the table
        shown = [reason for reason in reasons if not reason.startswith(_DOES_NOT_APPLY)]
        checks = f"{each.passed} of {total}" if total else "-"
        rows.append((each.name, Text(each.status, _COLOURS[each.status]), checks, "; ".join(shown)))
    console.table(("capability", "status", "passed", "reason"), rows, right=("passed",))
    for check, *others in _by_message(check for check in report.checks if check.outcome == "failed"):
        message = check.message.replace("\n", "\n  ")
        print(f"\n{check.capability}: {check.name} failed after {check.seconds:.1f} s\n  {message}")
        if others:
            names = ", ".join(dict.fromkeys(each.capability for each in others))
            print(f"  {len(others)} more failed with this message: {names}")
    statuses = Counter(each.status for each in report.capabilities)
    print(f"\n{report.backend}: {', '.join(f'{statuses[each]} {each}' for each in _COLOURS if statuses[each])}")
