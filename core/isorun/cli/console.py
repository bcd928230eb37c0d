"""Printing: results to standard output, everything else to standard error.

rich is imported when it is used, so that ``isorun --help`` does not import it.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

    from isorun.models.hub import Progress

_PIPED_WIDTH = 160
_MIN_WIDTH = 40  # rich drops the columns that do not fit, without a word

results: TextIO | None = None
"""What JSON is printed to; ``None`` for standard output."""


def stdout() -> Console:
    """The console for results. Lines are not wrapped to a terminal's width in a pipe."""
    from rich.console import Console

    width = max(shutil.get_terminal_size((_PIPED_WIDTH, 0)).columns, _MIN_WIDTH)
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def stderr() -> Console:
    """The console for everything else."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Print a line that is not part of the result."""
    print(text, file=sys.stderr)


def json_out(value: Any) -> None:
    """Print a result as JSON. Numbers that are not finite become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False), file=results)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print rows under headings; ``right`` names the columns that are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    stdout().print(drawn)


def facts(pairs: Mapping[str, object]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, pairs)) + 2
    for name, value in pairs.items():
        print(f"{name:<{width}}{value}")


def size(count: int) -> str:
    """A number of bytes in binary units."""
    if count < 1024:
        return f"{count} B"
    power = min(int(math.log(count, 1024)), 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def shape(dimensions: Sequence[int | str | None] | None) -> str:
    """A shape as text; ``?`` for an unknown dimension."""
    if dimensions is None:
        return "any"
    return "[" + ", ".join("?" if dimension is None else str(dimension) for dimension in dimensions) + "]"


@contextmanager
def transfer(verb: str = "Fetching") -> Iterator[Progress]:
    """A progress bar of bytes on standard error; one line if that is not a terminal."""
    console = stderr()
    if not console.is_terminal:
        announced: set[str] = set()

        def announce(what: str, _: int, total: int) -> None:
            if what not in announced:
                announced.add(what)
                note(f"{verb} {what}{f' ({size(total)})' if total else ''}")

        yield announce
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"{verb} {what}", total=total or None)
            bar.update(tasks[what], completed=done)

        yield show


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error; nothing if that is not a terminal. Yields a function that shows another text, which
    is a line there if it is not a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield note
        return
    from rich.text import Text

    # A string would be read as markup, and lose the extras of `onnxruntime[gpu]`.
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(text))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
