"""List the backends and whether each is available."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from isorun.cli import console, options
from isorun.plugin import listing

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
        typer.Option(
            metavar="NAME",
            help="List the backends of an isolated environment (see `isorun env`).",
            autocompletion=options.complete_environments,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the backends and whether each is available.

    Plugins of other distributions are loaded in separate processes, so one that crashes or hangs affects only its
    row. --probe runs each backend, also in a separate process.
    """
    if environment is None:
        descriptions = listing.descriptions()
    else:
        from isorun.isolation import environments
        from isorun.isolation.worker.backend import Worker

        with closing(Worker(environments.get(environment))) as worker:
            descriptions = worker.descriptions()
    described = [description.as_dict() for description in descriptions]
    if probe:
        from isorun.cli.probe import probe_in_process

        for entry in described:
            if entry["status"] == "available":
                with console.working(f"Probing {entry['name']}"):
                    results = probe_in_process(entry["name"], entry["precisions"], environment)
                entry["probe"] = [asdict(result) for result in results]
    if as_json:
        console.json_out(described)
    elif options:
        _show_options(described)
    else:
        _show(described, probe)
    if any(result["ok"] is False for entry in described for result in entry.get("probe", [])):
        raise typer.Exit(1)


def _show(described: list[dict[str, Any]], probed: bool) -> None:
    columns = ["backend", "status", "version", "device", "precisions", *(["probe"] if probed else [])]
    rows = [_row(entry, probed) for entry in described]
    if any(entry["certificate"] for entry in described):
        columns.append("conformance")
        rows = [[*row, _conformance(entry["certificate"])] for row, entry in zip(rows, described, strict=True)]
    console.table(columns, rows)
    problems = [entry for entry in described if entry["status"] != "available"]
    for entry in problems:
        owner = f" ({entry['distribution']})" if entry["status"] == "broken" and entry["distribution"] else ""
        print(f"\n{entry['name']}{owner} is {entry['status']}: {entry['reason']}\n  {entry['remedy']}")
    for entry in described:
        if entry["unverified"]:
            print(f"\n{entry['name']}: not verified on hardware: {', '.join(entry['unverified'])}")
        for result in entry.get("probe", []):
            if not result["ok"]:
                print(f"\n{entry['name']}, {result['precision']}: {result['message']}")


def _row(entry: dict[str, Any], probed: bool) -> list[object]:
    from rich.text import Text

    colour = {"available": "green", "unavailable": "yellow", "broken": "red"}[entry["status"]]
    row: list[object] = [entry["name"], Text(entry["status"], colour), entry["version"] or "-"]
    row += [", ".join(entry["devices"]) or "-", ", ".join(entry["precisions"]) or "-"]
    if probed:
        row.append(
            "\n".join(
                f"{result['precision']} ok, {result['milliseconds']:.2f} ms, error {result['error']:.0e}"
                if result["ok"]
                else f"{result['precision']} {'unavailable' if result['ok'] is None else 'FAILED'}"
                for result in entry.get("probe", [])
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
        (entry["name"], key, _allowed(option), "-" if option["default"] is None else option["default"], option["help"])
        for entry in described
        for key, option in entry["options"].items()
    ]
    if rows:
        console.table(("backend", "option", "type", "default", "meaning"), rows)
    else:
        print("No backend has options.")


def _allowed(option: dict[str, Any]) -> str:
    return " | ".join(map(str, option["choices"])) or str(option["type"])
