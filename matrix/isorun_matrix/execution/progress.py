"""What is shown while a matrix runs: lines on standard error, and on a terminal a bar below them.

Nothing is drawn while a cell is measured: a bar that moves would use the cores that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from isorun.cli import console
from isorun_matrix.report import columns, summary
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
        text = summary.explanation(cell)
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


def for_stderr() -> Lines:
    """A bar if standard error is a terminal, else lines."""
    return Bar() if console.stderr().is_terminal else Lines()
