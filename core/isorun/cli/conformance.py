"""Check that a backend keeps the contract, and say which of its capabilities were proved."""

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
    from isorun.testing.suite.runner import Check, Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLOURS = {"proved": "green", "failed": "bold red", "not run": "red", "skipped": "yellow"}
_DOES_NOT_APPLY = "does not apply"  # to a backend that declares otherwise: of no interest in a table


@app.command()
def conformance(
    backend: Annotated[str, typer.Argument(help="The backend's name.")],
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="The isolated environment that it runs in: see `isorun env`.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of the backend, in every check; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CAPABILITY", help="Its checks alone, such as 'binding'; any number.")
    ] = None,
    big: Annotated[bool, typer.Option("--big", help="Run bert-3l to bert-base too: minutes.")] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", min=1, help="How long a check may take. Default: 300, with --big 1800.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a backend keeps the contract, and say which of its capabilities were proved.

    The checks run in a process of their own: one that crashes or hangs has failed, and the others go on. What the
    backend does not declare is skipped, with the reason. Exits with 1 where a check failed.
    """
    from isorun.testing.suite import runner

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
    """Refuse a backend that cannot be used where it is to run: every check would say the same."""
    if environment is None:
        here = registry.availability(registry.get(name))
    else:
        with closing(Worker(environments.get(environment))) as worker:
            here = worker.get(name).availability()
    if not here.ok:
        raise BackendUnavailable(name, here.reason, here.remedy)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """The check that runs, on standard error; nothing where that is no terminal."""
    terminal = console.stderr()
    if not terminal.is_terminal:
        yield lambda *_: None
        return
    with terminal.status("Starting") as status:
        yield lambda check, done, total: status.update(f"{done} of {total}  {check}")


def _alike(checks: Iterable[Check]) -> Iterable[list[Check]]:
    """Checks that failed alike, paths aside, together: a backend that cannot load a model fails nearly all."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(re.sub(r"\S*/\S+", "", check.message), []).append(check)
    return found.values()


def _show(report: Report) -> None:
    from rich.text import Text

    rows = []
    for each in report.capabilities:
        of = each.passed + each.failed + each.not_run
        said = [] if each.status == "failed" else [why for why in each.reasons if not why.startswith(_DOES_NOT_APPLY)]
        rows.append(
            (
                each.name,
                Text(each.status, _COLOURS[each.status]),
                f"{each.passed} of {of}" if of else "-",
                "; ".join(said),
            )
        )
    console.table(("capability", "", "checks", "what was left out, and why"), rows, right=("checks",))
    for check, *others in _alike(check for check in report.checks if check.outcome == "failed"):
        message = check.message.replace("\n", "\n  ")
        print(f"\n{check.capability}: {check.name}, after {check.seconds:.1f} s\n  {message}")
        if others:
            names = ", ".join(dict.fromkeys(each.capability for each in others))
            print(f"  The same failed {len(others)} more, of: {names}")
    statuses = Counter(each.status for each in report.capabilities)
    print(f"\n{report.backend}: {', '.join(f'{statuses[each]} {each}' for each in _COLOURS if statuses[each])}")
