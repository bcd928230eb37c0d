"""What is shown while a matrix runs: lines on standard error, and on a terminal a bar below them.

Nothing is drawn while a cell is measured: a bar that moves would use the cores that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from isorun.cli import console
from isorun_matrix.report import columns, remarks
from isorun_matrix.results.records import CellResult
from isorun_matrix.text import printable

if TYPE_CHECKING:
    from isorun.models.hub import Progress as Fetching


class Lines:
    """Prints a line for each event."""

    def __init__(self) -> None:
        self._done = 0
        self._total = 0
        self._explained: set[str] = set()

    def note(self, text: str) -> None:
        """Print a line."""
        console.note(text)

    def fetching(self) -> AbstractContextManager[Fetching]:
        """While a checkpoint is fetched: yields a function to call with the bytes so far."""
        return console.transfer()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While something takes long, before any cell."""
        self.note(what)
        yield

    @contextmanager
    def measuring(self, processes: int, cells: int) -> Iterator[None]:  # noqa: ARG002 - for the bar
        """While cells are tried and measured: about how many processes that takes, and how many cells."""
        self._total = cells
        yield

    def started(self, what: str, *, cell: bool = False) -> None:
        """A job starts; for a cell, a line is printed when all its rounds are done."""
        if not cell:
            self.note(what)

    def ended(self) -> None:
        """A process of a cell has ended."""

    def finished(self, cell: CellResult) -> None:
        """A cell has its result."""
        self._done += 1
        text = remarks.explanation(cell)
        if text is None:
            p50, max_rel = columns.text("p50 ms", cell), columns.text("max rel", cell)
            text = f"p50 {p50} ms, max rel {max_rel}"
        elif text in self._explained:
            text = "as above"
        else:
            self._explained.add(text)
        self.note(printable(f"[{self._done}/{self._total}] {cell.status:<13} {cell.id}: {text}"))


class Bar(Lines):
    """The same above a bar with the current job, the number of ended processes, and the remaining time."""

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        with console.working(what):
            yield

    @contextmanager
    def measuring(self, processes: int, cells: int) -> Iterator[None]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        parts = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*parts, console=console.stderr(), auto_refresh=False, transient=True) as self._bar:
            self._task = self._bar.add_task("", total=processes)
            with super().measuring(processes, cells):
                yield

    def note(self, text: str) -> None:
        if self._total:
            self._bar.console.print(text, soft_wrap=True)
        else:
            super().note(text)

    def started(self, what: str, *, cell: bool = False) -> None:
        if self._total:
            self._bar.update(self._task, description=what, refresh=True)
        else:
            super().started(what, cell=cell)

    def ended(self) -> None:
        self._bar.update(self._task, advance=1, refresh=True)


class Machines:
    """Several machines that run at once: lines with their names, and on a terminal a bar for each below them."""

    def __init__(self, names: Sequence[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console.stderr()
        self._width = max(map(len, names))
        parts = (
            TextColumn("{task.fields[machine]}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bars = Progress(*parts, console=self._console, auto_refresh=False, transient=True)
        self._tasks = {name: self._bars.add_task("", machine=name, total=None) for name in names}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def note(self, machine: str, text: str) -> None:
        """Print a line of a machine."""
        self._console.print(printable(f"{machine:<{self._width}}  {text}"), soft_wrap=True)

    def show(self, machine: str, event: Mapping[str, Any]) -> None:
        """Show an event of a machine, as :class:`isorun_matrix.execution.cluster.node.Node` yields it."""
        task = self._tasks[machine]
        if "note" in event:
            self.note(machine, event["note"])
        elif "processes" in event:
            self._bars.update(task, total=event["processes"])
        else:
            self._bars.update(task, advance="ended" in event, description=event.get("started"))
        if self._console.is_terminal:
            self._bars.refresh()


def for_stderr() -> Lines:
    """A bar if standard error is a terminal, else lines."""
    return Bar() if console.stderr().is_terminal else Lines()
