"""What a person sees while a matrix runs: plain lines, and on a terminal a bar below them.

All of it goes to standard error. Nothing is drawn while a cell is measured: a bar that moves all the time would
take its share of the processor from what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from isorun.cli import console
from isorun_matrix.report import summary as view
from isorun_matrix.text import printable

if TYPE_CHECKING:
    from isorun.models.hub import Progress as Fetching


class Lines:
    """Is told what happens in a run, and prints a line for what takes long."""

    def __init__(self) -> None:
        self._done = 0
        self._total = 0
        self._explained: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line."""
        console.note(text)

    def fetching(self) -> AbstractContextManager[Fetching]:
        """While a checkpoint is fetched: gives what is called with the bytes so far."""
        return console.transfer()

    @contextmanager
    def making(self, what: str) -> Iterator[None]:
        """While something is made that takes long, before any cell."""
        self.say(what)
        yield

    @contextmanager
    def measuring(self, total: int, kept: int) -> Iterator[None]:
        """While cells run: ``total`` of them, ``kept`` of which have a result already."""
        self._done, self._total = kept, total
        if kept:
            self.say(f"{kept} of {total} cells are done and kept")
        yield

    def working(self, what: str) -> None:
        """Something other than a cell is about to take a while."""
        self.say(what)

    def running(self, cell: str) -> None:
        """A cell is about to run."""

    def finished(self, result: Mapping[str, Any]) -> None:
        """A cell has its result."""
        self._done += 1
        said = view.explanation(result)
        if said is None:
            said = f"p50 {view.number(view.p(result, 50))} ms, max rel {view.error(result['parity']['max_rel'])}"
        elif said in self._explained:
            said = "as above"
        else:
            self._explained.add(said)
        self.say(printable(f"[{self._done}/{self._total}] {result['status']:<13} {result['id']}: {said}"))


class Bar(Lines):
    """The same above a bar with the cell that runs, how many are done, and the time that is left."""

    @contextmanager
    def making(self, what: str) -> Iterator[None]:
        with console.working(what):
            yield

    @contextmanager
    def measuring(self, total: int, kept: int) -> Iterator[None]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=console.stderr(), auto_refresh=False, transient=True) as self._bar:
            self._task = self._bar.add_task("", total=total, completed=kept)
            with super().measuring(total, kept):
                yield

    def say(self, text: str) -> None:
        if self._total:
            self._bar.console.print(text, soft_wrap=True)
        else:
            super().say(text)

    def working(self, what: str) -> None:
        if self._total:
            self._bar.update(self._task, description=what, refresh=True)
        else:
            super().working(what)

    def running(self, cell: str) -> None:
        self._bar.update(self._task, description=cell, refresh=True)

    def finished(self, result: Mapping[str, Any]) -> None:
        super().finished(result)
        self._bar.update(self._task, completed=self._done, refresh=True)


def for_terminal() -> Lines:
    """What suits standard error: a bar where it is a terminal."""
    return Bar() if console.stderr().is_terminal else Lines()
