"""List the backends and whether each is available."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isorun.cli import console
from isorun.plugin import listing

if TYPE_CHECKING:
    from isorun.isolation.worker.backend import Worker

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def backends(
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Run a small model on each backend in every precision and check the result."),
    ] = False,
    options: Annotated[bool, typer.Option("--options", help="Describe each backend's options.")] = False,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="List the backends of an isolated environment (see `isorun env`)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the backends and whether each is available.

    Plugins of other distributions are loaded in separate processes, so one that crashes or hangs affects only its
    row. --probe runs each backend, also in a separate process.
    """
    if environment is None:
        found = listing.descriptions()
    else:
        with _worker(environment) as worker:
            found = worker.descriptions()
    described = [asdict(each) for each in found]
    if probe:
        from isorun.cli.probe import probe_in_process

        for each in described:
            if each["status"] == "available":
                with console.working(f"Probing {each['name']}"):
                    results = probe_in_process(each["name"], each["precisions"], environment)
                each["probe"] = [asdict(result) for result in results]
    if as_json:
        console.json_out(described)
    elif options:
        _show_options(described)
    else:
        _show(described, probe)
    if any(result["ok"] is False for each in described for result in each.get("probe", [])):
        raise typer.Exit(1)


@contextmanager
def _worker(environment: str) -> Iterator[Worker]:
    from isorun.isolation import environments
    from isorun.isolation.worker.backend import Worker

    with closing(Worker(environments.get(environment))) as worker:
        yield worker


def _show(described: list[dict[str, Any]], probed: bool) -> None:
    columns = ["backend", "status", "version", "device", "precisions", *(["probe"] if probed else [])]
    rows = [_row(each, probed) for each in described]
    if any(each["certificate"] for each in described):
        columns.append("conformance")
        rows = [[*row, _conformance(each["certificate"])] for row, each in zip(rows, described, strict=True)]
    console.table(columns, rows)
    problems = [each for each in described if each["status"] != "available"]
    for each in problems:
        owner = f" ({each['distribution']})" if each["status"] == "broken" and each["distribution"] else ""
        print(f"\n{each['name']}{owner} is {each['status']}: {each['reason']}\n  {each['remedy']}")
    for each in described:
        for result in each.get("probe", []):
            if not result["ok"]:
                print(f"\n{each['name']}, {result['precision']}: {result['message']}")


def _row(each: dict[str, Any], probed: bool) -> list[object]:
    from rich.text import Text

    colour = {"available": "green", "unavailable": "yellow", "broken": "red"}[each["status"]]
    row: list[object] = [each["name"], Text(each["status"], colour), each["version"] or "-"]
    row += [", ".join(each["devices"]) or "-", ", ".join(each["precisions"]) or "-"]
    if probed:
        row.append(
            "\n".join(
                f"{result['precision']} ok, {result['milliseconds']:.2f} ms, error {result['error']:.0e}"
                if result["ok"]
                else f"{result['precision']} {'unavailable' if result['ok'] is None else 'FAILED'}"
                for result in each.get("probe", [])
            )
            or "-"
        )
    return row


def _conformance(certificate: dict[str, Any] | None) -> str:
    """What a certificate records, in a line. The versions and the hardware are in the JSON."""
    if certificate is None:
        return "-"
    if "problem" in certificate:
        return "unreadable"
    counted = {"proved": "proved", "skipped": "skipped", "known_failures": "known to fail", "failed": "failed"}
    return ", ".join(f"{certificate[key]} {words}" for key, words in counted.items() if certificate[key])


def _show_options(described: list[dict[str, Any]]) -> None:
    rows = [
        (each["name"], key, _allowed(option), "-" if option["default"] is None else option["default"], option["help"])
        for each in described
        for key, option in each["options"].items()
    ]
    if rows:
        console.table(("backend", "option", "type", "default", "meaning"), rows)
    else:
        print("No backend has options.")


def _allowed(option: dict[str, Any]) -> str:
    return " | ".join(map(str, option["choices"])) or str(option["type"])
