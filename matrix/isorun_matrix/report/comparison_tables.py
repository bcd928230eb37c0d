"""Runs beside one another, in the terminal and in Markdown (:mod:`isorun_matrix.report.compare`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from isorun_matrix.report import markdown, terminal
from isorun_matrix.report import summary as view
from isorun_matrix.text import printable

_HEADINGS = ("backend", "precision", "run", "p50 ms", "p99", "tokens/s", "max rel", "time", "status")
_NUMBERS = _HEADINGS[3:8]
_MOST = 48  # characters of a value
_STYLES = {"slower": "bold red", "faster": "bold green", "disturbed": "yellow"}


def render(comparison: Mapping[str, Any], width: int) -> RenderableType:
    """What the runs are, a block of cells for each model and shape, ``width`` characters wide, and how many changed."""
    blocks = {title: [[*map(_styled, row)] for row in rows] for title, rows in _blocks(comparison).items()}
    headings = [Text(heading, style="bold") for heading in _HEADINGS]
    widths = terminal.widths([headings, *(row for rows in blocks.values() for row in rows)], width)
    drawn: list[RenderableType] = [Text(printable(line)) for line in _runs(comparison)]
    drawn += [Text(), terminal.table([headings], widths, _HEADINGS, _NUMBERS)]
    for title, rows in blocks.items():
        drawn += [Text(), Text(printable(title), style="bold"), terminal.table(rows, widths, _HEADINGS, _NUMBERS)]
    return Stack(*drawn, Text(), *(Text(printable(line), style="bold") for line in tallies(comparison)))


def as_markdown(comparison: Mapping[str, Any]) -> str:
    """The same, tables as GitHub reads them."""
    lines = ["# Runs compared", "", *map(_item, _runs(comparison)), ""]
    for title, rows in _blocks(comparison).items():
        lines += [f"## {markdown.escaped(title)}", "", markdown.line(_HEADINGS)]
        lines += [markdown.line(["---:" if heading in _NUMBERS else "---" for heading in _HEADINGS])]
        lines += [*(markdown.line([*map(markdown.escaped, row)]) for row in rows), ""]
    return "\n".join([*lines, *(f"{markdown.escaped(line)}." for line in tallies(comparison))]) + "\n"


def _item(line: str) -> str:
    """A line of a list, as far to the right as it stands."""
    text = line.lstrip()
    return f"{line[: len(line) - len(text)]}- {markdown.escaped(text)}"


def tallies(comparison: Mapping[str, Any]) -> Iterator[str]:
    """For each run but the first, how many cells became faster, slower, or something else."""
    for number in range(1, len(comparison["runs"])):
        counts: dict[str, int] = {}
        for cell in comparison["cells"]:
            word = _word(cell["runs"][0], cell["runs"][number])
            counts[word] = counts.get(word, 0) + 1
        yield f"run {number + 1} beside run 1: " + ", ".join(f"{count} {word}" for word, count in counts.items())


def _runs(comparison: Mapping[str, Any]) -> Iterator[str]:
    for number, run in enumerate(comparison["runs"], start=1):
        cpu = run["environment"]["cpu"]
        gpus = "".join(f", {gpu['name']}" for gpu in run["environment"].get("gpus", ()))
        yield f"run {number}: {run['folder']}, {cpu['model']}, {cpu['usable_cores']} cores{gpus}, {run['created']}"
        for name, (there, here) in run["differences"].items():
            yield f"  {name}: {_value(there)} in run 1, {_value(here)} in run {number}"


def _blocks(comparison: Mapping[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    blocks: dict[str, list[tuple[str, ...]]] = {}
    for cell in comparison["cells"]:
        rows = blocks.setdefault(f"{cell['model']}, {cell['shape']}", [])
        for number, each in enumerate(cell["runs"], start=1):
            named = (cell["label"], cell["precision"]) if number == 1 else ("", "")
            rows.append((*named, str(number), *_figures(cell["runs"][0], each)))
    return blocks


def _figures(first: Mapping[str, Any] | None, each: Mapping[str, Any] | None) -> tuple[str, ...]:
    if each is None:
        return (*[view.NONE] * len(_NUMBERS), "not there")
    change = each["change"]
    return (
        view.number(view.p(each, 50)),
        view.number(view.p(each, 99)),
        view.number(view.measure(each, "throughput", "tokens_per_s")),
        view.error(view.measure(each, "parity", "max_rel")),
        f"{change['p50']:.2f} x" if change else "",
        each["status"] if each is first or not change else change["verdict"],
    )


def _word(first: Mapping[str, Any] | None, each: Mapping[str, Any] | None) -> str:
    if each is None:
        return "not there"
    if each["change"]:
        return str(each["change"]["verdict"])
    if first is None:
        return "new"
    before = "" if first["status"] == each["status"] else f" (was {first['status']})"
    return f"{each['status']}{before}"


def _styled(text: str) -> Text:
    return Text(printable(text), style=_STYLES.get(text, ""))


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
