"""The columns of every table. To add one, add an entry to :data:`COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isorun_matrix.report.formatting import NONE, cosine, count, interval, number, ratio, share
from isorun_matrix.report.summary import Group
from isorun_matrix.results.records import CellResult


@dataclass(frozen=True)
class Column:
    """A column of a table of cells. Those of quality are shown only where a cell has a value.

    Attributes:
        header: its title; unique among the columns.
        path: the member of a cell or of its figures, such as ``latency_ms.p50``, or a method of the group.
        tables: where it is shown: ``terminal``, ``markdown``, ``html``, ``compare``, and in HTML ``parity`` and ``all``
            (the table of all cells).
        description: explains the header; shown as a tooltip in HTML.
    """

    header: str
    path: str
    tables: str
    show: Callable[[Any], str] = number
    description: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the column is aligned to the right."""
        return self.show is not str

    @property
    def of_quality(self) -> bool:
        """Whether the column has what vectors keep."""
        return self.path.startswith("quality.")

    def value(self, cell: CellResult, group: Group | None = None) -> Any:
        """The value of a cell; ``None`` where it has none."""
        if hasattr(Group, self.path):
            return None if group is None else getattr(group, self.path)(cell)
        value: Any = cell if self.path in CellResult.model_fields else cell.result
        for name in self.path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        return value

    def text(self, cell: CellResult, group: Group | None = None) -> str:
        """The value of a cell as text."""
        value = self.value(cell, group)
        return NONE if value is None else self.show(value)


_EACH = "terminal markdown html all"  # of one run, but not of parity
_KEPT = f"{_EACH} parity"

COLUMNS = (
    Column("backend", "label", f"{_KEPT} compare", str),
    Column("precision", "precision", f"{_KEPT} compare", str),
    Column("p50 ms", "latency_ms.p50", f"{_EACH} compare", number, "median of the rounds' medians"),
    Column("speed-up", "speed_up", _EACH, ratio, "over the first correct cell of the model and shape"),
    Column("p90 ms", "latency_ms.p90", "markdown html", number, "90th percentile of all runs"),
    Column("p95 ms", "latency_ms.p95", "html", number, "95th percentile of all runs"),
    Column("p99 ms", "latency_ms.p99", f"{_EACH} compare", number, "99th percentile of all runs"),
    Column("mean ms", "latency_ms.mean", "html", number, "mean of all runs"),
    Column("std ms", "latency_ms.std", "html", number, "standard deviation of all runs"),
    Column("runs", "latency_ms.samples", "markdown html all", count, "measured runs of all rounds"),
    Column("threads", "provenance.threads", "html all", count, "of a run; - where the backend does not tell"),
    Column("CPU ms", "cpu_ms", "html", number, "CPU time of a run, all threads together"),
    Column("joules", "energy.joules", "html", number, "energy of a run, of the whole package or GPU, by its counters"),
    Column("requests/s", "throughput.requests_per_s", "html", number, "sequential requests; median of the rounds"),
    Column("tokens/s", "throughput.tokens_per_s", f"{_EACH} compare", number, "real tokens; median of the rounds"),
    Column("load ms", "load_ms", "markdown html", number, "opening the session"),
    Column("first run ms", "first_run_ms", "html", number, "the first run of a session"),
    Column("peak MiB", "memory_mib.peak", "markdown html all", number, "peak memory in RAM"),
    Column("verdict", "parity.verdict", "parity", str),
    Column("max abs", "parity.max_abs", "parity"),
    Column(
        "max rel",
        "parity.max_rel",
        "terminal markdown compare parity all",
        number,
        "largest error of an element, relative",
    ),
    Column("neighbours", "quality.recall.value", _KEPT, share, "share of the nearest neighbours in fp32 that are kept"),
    *(
        Column(name, f"quality.figures.{name}", _KEPT, share, "by labels")
        for name in ("Spearman", "nDCG@10", "accuracy")
    ),
    *(
        Column(name, f"quality.figures.{name}", "markdown html parity all", share, "by labels")
        for name in ("recall@10", "F1")
    ),
    Column("kept", "quality.kept.value", _KEPT, share, "share of the score by labels in fp32"),
    Column("low end", "quality.share.low", "markdown parity", share, "of the 95 % interval of what is kept"),
    Column("quality", "quality.share", "compare", interval, "share of what is kept, with its 95 % interval"),
    Column("first", "quality.first.value", "parity", share, "share of texts with the same nearest neighbour"),
    Column("tau", "quality.tau.value", "parity", share, "Kendall's rank correlation of similarities"),
    Column("rms", "parity.rms", "parity"),
    Column("cosine", "parity.cosine", "markdown parity", cosine),
    Column("argmax", "parity.argmax", "parity"),
    Column("limit: max rel", "parity.tolerance.max_rel", "parity"),
    Column("limit: rms", "parity.tolerance.rms", "parity"),
    Column("limit: cosine", "parity.tolerance.cosine", "parity", cosine),
    Column("status", "status", f"{_EACH} compare", str),
)


def columns(table: str, cells: Iterable[CellResult] = ()) -> list[Column]:
    """The columns of a table of cells. The terminal has little room: there, what is kept replaces ``max rel``."""
    measured = {column.header for cell in cells for column in COLUMNS if column.value(cell) is not None}
    shown = [
        column
        for column in COLUMNS
        if table in column.tables.split() and (not column.of_quality or column.header in measured)
    ]
    replaced = "max rel" if table == "terminal" and any(column.of_quality for column in shown) else None
    return [column for column in shown if column.header != replaced]


def text(header: str, cell: CellResult, group: Group | None = None) -> str:
    """What the column with a header shows of a cell."""
    return next(column for column in COLUMNS if column.header == header).text(cell, group)
