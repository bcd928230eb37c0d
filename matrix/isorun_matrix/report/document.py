"""Lines and tables of a report, which rich draws in a terminal, and as GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from isorun_matrix.text import printable

_LABEL = 8  # minimum width of the first column


@dataclass(frozen=True)
class Table:
    """Rows under one header, a titled block after another, with columns of the same width.

    Attributes:
        numeric: which columns are aligned to the right.
        blocks: rows by title, of texts with their styles.
    """

    headers: Sequence[str]
    numeric: Sequence[bool]
    blocks: Mapping[str, Sequence[Sequence[Text]]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        header = [Text(text, style="bold") for text in self.headers]
        widths = _widths([header, *(row for rows in self.blocks.values() for row in rows)], options.max_width)
        yield self._drawn([header], widths)
        for title, rows in self.blocks.items():
            yield from [Text(), Text(printable(title), style="bold")] if title else []
            yield self._drawn(rows, widths)

    def _drawn(self, rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> Drawn:
        drawn = Drawn(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index, (width, right) in enumerate(zip(widths, self.numeric, strict=True)):
            drawn.add_column(
                width=width,
                justify="right" if right else "left",
                no_wrap=index > 0,
                overflow="ellipsis" if index else "fold",
            )
        for row in rows:
            drawn.add_row(*row)
        return drawn

    def as_markdown(self) -> Iterator[str]:
        """The lines of a table for each block; bold texts are emphasized."""
        for title, rows in self.blocks.items():
            yield from [f"## {escaped(title)}", ""] if title else []
            lines = [[*map(escaped, self.headers)], ["---:" if right else "---" for right in self.numeric]]
            for row in (*lines, *([_emphasized(text) for text in row] for row in rows)):
                yield f"| {' | '.join(row)} |"
            yield ""


@dataclass(frozen=True)
class Document:
    """Tables with lines above and below them."""

    title: str
    above: Sequence[str]
    tables: Sequence[Table]
    below: Sequence[str]

    def __rich__(self) -> Group:
        above, below = ([Text(printable(line)) for line in lines] for lines in (self.above, self.below))
        return stacked(above, *([table] for table in self.tables), below)

    def as_markdown(self) -> str:
        """The same as Markdown."""
        tables = [line for table in self.tables for line in table.as_markdown()]
        return "\n".join([f"# {self.title}", "", *items(self.above), "", *tables, *items(self.below)]) + "\n"


def stacked(*parts: Iterable[RenderableType]) -> Group:
    """Parts of a document in a terminal, with a blank line between them."""
    first, *others = (shown for part in parts if (shown := [*part]))
    return Group(*first, *(line for shown in others for line in (Text(), *shown)))


def _widths(rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """The widths of the columns.

    Where ``width`` is too small, the first column is narrower, down to :data:`_LABEL`: it can be folded, whereas a
    number on two lines would be misread.
    """
    first, *others = (max(cell.cell_len for cell in column) for column in zip(*rows, strict=True))
    left = width - sum(others) - len(others) - 1  # a blank after each column
    return [min(first, max(left, _LABEL)), *others]


def texts(rows: Iterable[Sequence[str]], styles: Mapping[str, str] | None = None) -> list[list[Text]]:
    """Rows whose texts have the styles of a mapping."""
    return [[Text(printable(text), (styles or {}).get(text, "")) for text in row] for row in rows]


def items(lines: Iterable[str]) -> Iterator[str]:
    """The items of a list in Markdown, with the indentation of the lines."""
    for line in lines:
        text = line.lstrip()
        yield f"{line[: len(line) - len(text)]}- {escaped(text)}"


def _emphasized(text: Text) -> str:
    shown = escaped(text.plain)
    return f"**{shown}**" if "bold" in str(text.style) else shown


def escaped(text: str) -> str:
    """Text on one line without markup."""
    text = printable(" ".join(text.splitlines()))
    for special in "\\`*_|<>[]&~$#":
        text = text.replace(special, f"\\{special}")
    return text
