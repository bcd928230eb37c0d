"""What is shown while a matrix runs: lines on standard error, and below them on a terminal a bar over all work with the
time that is left; elsewhere a line about it every minute.

Nothing is drawn while a cell is measured: a bar that moves would use the cores that are measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from isorun.cli import console
from isorun_matrix.report import columns, remarks
from isorun_matrix.results.records import CellResult
from isorun_matrix.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

_LINE_SECONDS = 60.0


class Lines:
    """Prints a line for each result, and every minute what is done and left; on a terminal, a bar with the current job
    and the remaining time in place of these lines."""

    _bar: Progress | None = None

    def __init__(self) -> None:
        self._done = 0
        self._total = 0
        self._work = self._worked = 0.0
        self._started = self._last = time.monotonic()
        self._explained: set[str] = set()

    def note(self, text: str) -> None:
        """Print a line."""
        self._show(note=text)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While something takes long, before any cell."""
        if not console.stderr().is_terminal:
            self.note(what)
        with console.working(what):
            yield

    @contextmanager
    def measuring(self, seconds: float, cells: int) -> Iterator[None]:
        """While references are computed and cells measured: about how long that takes on a quick machine, and how many
        cells there are."""
        self._total, self._work, self._done, self._worked = cells, seconds, 0, 0.0  # one of several runs
        self._started = self._last = time.monotonic()
        with ExitStack() as stack:
            if console.stderr().is_terminal:
                self._bar = stack.enter_context(_progress("{task.fields[left]}, {task.description}"))
                self._bar.add_task("", total=seconds, left=self._left())
            self._show(seconds=seconds)
            yield
        self._bar = None

    def started(self, what: str, *, part: bool = False) -> None:
        """A job starts. One that is a part of a longer one has no line of its own."""
        self._show(started=what, part=part)

    def added(self, seconds: float) -> None:
        """There is more work than :meth:`measuring` was told, such as the repetition of disturbed rounds."""
        self._work += seconds
        self._show(seconds=self._work)

    def ended(self, seconds: float) -> None:
        """A part of the work has ended: as many of the seconds of :meth:`measuring` and :meth:`added`."""
        self._worked = min(self._work, self._worked + seconds)
        self._show(ended=seconds)

    def _show(self, **event: Any) -> None:
        """Show an event: a ``note``; what ``started``, and whether it is a ``part``; the ``seconds`` of all work, or
        those that have ``ended``."""
        if "note" in event:
            if self._bar is None:
                console.note(event["note"])
            else:
                self._bar.console.print(event["note"], soft_wrap=True)
        elif self._bar is not None:
            self._bar.update(
                *self._bar.task_ids,
                total=self._work,
                completed=self._worked,
                description=event.get("started"),
                left=self._left(),
                refresh=True,
            )
        elif "started" in event and not event["part"]:
            self.note(event["started"])
        elif "started" in event and time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            done = f"{self._worked / self._work:.0%} done, {self._left()}: " if self._work else ""
            self.note(f"{done}{event['started']}")

    def _left(self) -> str:
        if not self._worked:
            return "time left unknown"
        left = (time.monotonic() - self._started) * (self._work - self._worked) / self._worked
        return f"about {max(1, round(left / 60))} min left"

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


class Machines:
    """Several machines that run at once: lines with their names, and on a terminal a bar for each below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(map(len, names))
        self._bars = _progress("{task.description}", "{task.fields[machine]}")
        self._console = self._bars.console
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
        elif "seconds" in event:
            self._bars.update(task, total=event["seconds"])
        else:
            self._bars.update(task, advance=event.get("ended", 0), description=event.get("started"))
        if self._console.is_terminal:
            self._bars.refresh()


def _progress(after: str, *before: str) -> Progress:
    """Bars on standard error, with texts about each task before and after them."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    bar = (*(TextColumn(text, markup=False) for text in before), BarColumn(bar_width=24), TaskProgressColumn())
    last = TextColumn(after, markup=False)
    return Progress(*bar, last, console=console.stderr(), auto_refresh=False, transient=True)
