"""Check that a backend honours the plugin contract."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isorun.cli import console, models, options
from isorun.compilation.compiler import check_device
from isorun.errors import BackendUnavailable, IsorunError
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import listing, registry
from isorun.plugin.certificate import read

if TYPE_CHECKING:
    from isorun_conformance.result import Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLOURS = {"proved": "green", "failed": "bold red", "not run": "red", "known failure": "yellow", "skipped": "yellow"}
_SECONDS_BETWEEN_LINES = 30
_DOES_NOT_APPLY = "does not apply"  # concerns backends that declare something else; not worth a line in a table


@app.command()
def conformance(
    backend: Annotated[
        str,
        typer.Argument(
            metavar="BACKEND",
            help="The name of the backend.",
            show_default=False,
            autocompletion=options.complete_backends,
        ),
    ],
    environment: options.Environment = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the backend, for every check. Repeatable."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="A device of the backend, for every check. Default: its first.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CAPABILITY", help="Run the checks of this capability only, as the table names it. Repeatable."
        ),
    ] = None,
    big: Annotated[bool, typer.Option("--big", help="Also run bert-3l to bert-base, which takes minutes.")] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", min=1, help="The time limit of a check. Default: 300, with --big 1800.")
    ] = None,
    known_failures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML or JSON: checks that fail, each with reason, kind, exception and reference."
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a certificate to this JSON file.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Exit with 1 on regressions from this earlier certificate."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that a backend honours the plugin contract, and report which capabilities were proved.

    The checks run in a child process: a check that crashes or hangs has failed, and the others still run. Checks of
    what the backend does not declare are skipped, with the reason. Exits with 1 if a check failed, or if one that is
    declared as a known failure passed.
    """
    if sys.platform != "linux":
        raise IsorunError(
            f"The conformance suite compares the state of a process through /proc, which {platform.system()} lacks. "
            "Run it on Linux, such as in a container"
        )
    try:
        from isorun_conformance import runner
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise IsorunError("The conformance suite needs pytest. Install it with `pip install 'isorun[test]'`") from error
    from isorun_conformance import certificate as certificates
    from isorun_conformance import known_failures as known_failures_file

    if only and (certificate or compare):
        raise IsorunError("A certificate covers the whole suite. Omit --only, or both --certificate and --compare")
    settings = options.settings_of(option)
    if known_failures is not None:
        models.check_input(known_failures, "--known-failures", (".toml", ".json"))
    if compare is not None:
        models.check_input(compare, "--compare", (".json",))
    declared = {} if known_failures is None else known_failures_file.read(known_failures)
    before = None if compare is None else read(compare, backend)
    _require(backend, environment, device, options=bool(settings))
    if certificate is not None:
        models.check_output(certificate)
    with _progress() as progress:
        report = runner.run(
            backend,
            environment=environment,
            options=settings,
            big=big,
            device=device,
            only=only or [],
            known_failures=declared,
            seconds=seconds,
            progress=progress,
        )
    if as_json:
        console.json_out(report.as_dict())
    else:
        _show(report)
    document = certificates.certificate(report)
    if certificate is not None:
        certificate.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    lost = [] if before is None else list(certificates.regressions(before, document))
    if before is not None and lost:
        for line in (f"Compared with {compare}:", *lost, *certificates.differences(before, document)):
            console.note(line)
    if not report.passed and all(check.outcome in ("skipped", "known failure") for check in report.checks):
        console.note("No check passed: nothing is proved")
    if lost or not report.passed:
        raise typer.Exit(1)


def _require(name: str, environment: str | None, device: str | None, *, options: bool) -> None:
    """Refuse a backend that is unavailable, or lacks a device or the options that it needs, which every check would
    report again."""
    with ExitStack() as stack:
        if environment is None:
            backend = listing.load(name)  # not imported: the suite's processes would inherit what it does
        else:
            backend = stack.enter_context(closing(Worker(environments.get(environment)))).get(name)
        availability = registry.availability(backend)
    if not availability.ok or (availability.reason and availability.remedy and not options):
        raise BackendUnavailable(name, availability.reason, availability.remedy)
    if device is not None:
        check_device(backend, device)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the current check on standard error, in a line every half minute if that is not a terminal."""
    terminal = console.stderr()
    if not terminal.is_terminal:
        shown = time.monotonic()

        def show(check: str, done: int, total: int) -> None:
            nonlocal shown
            if time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
                shown = time.monotonic()
                console.note(f"{done} of {total} checks, at {check}")

        yield show
        return
    with terminal.status("Starting") as status:
        yield lambda check, done, total: status.update(f"{done} of {total}  {check}")


def _show(report: Report) -> None:
    from rich.text import Text

    rows = []
    for capability in report.capabilities:
        total = capability.passed + capability.failed + capability.not_run + capability.known
        reasons = () if capability.status == "failed" else capability.reasons  # failures follow the table
        shown = [reason for reason in reasons if not reason.startswith(_DOES_NOT_APPLY)]
        checks = f"{capability.passed} of {total}" if total else "-"
        rows.append((capability.name, Text(capability.status, _COLOURS[capability.status]), checks, "; ".join(shown)))
    console.table(("capability", "status", "passed", "reason"), rows, right=("passed",))
    for check, *others in report.causes:
        message = check.message.replace("\n", "\n  ")
        print(f"\n{check.capability}: {check.name} failed after {check.seconds:.1f} s\n  {message}")
        if others:
            names = ", ".join(dict.fromkeys(failed.capability for failed in others))
            print(f"  {len(others)} more failed for this cause: {names}")
    statuses = Counter(capability.status for capability in report.capabilities)
    print(f"\n{report.backend}: {', '.join(f'{statuses[status]} {status}' for status in _COLOURS if statuses[status])}")
