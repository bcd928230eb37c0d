"""Write the table of heads in ``docs/models.md``, from what the builders register.

``python tools/head_table.py`` writes it between two comments; with ``--check`` it exits with 1 if it is out of date. A
test does the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from isorun.models import heads

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
_BEGIN, _END = "<!-- heads: written by tools/head_table.py -->", "<!-- end of heads -->"


def table() -> str:
    """The table in Markdown. Families with the same heads share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind, tasks in heads.families().items():
        rows.setdefault(tuple("yes" if task in tasks else "-" for task in heads.TITLES), []).append(f"`{kind}`")
    lines = [f"| {', '.join(kinds)} | {' | '.join(row)} |" for row, kinds in rows.items()]
    titles = " | ".join(heads.TITLES.values())
    return "\n".join([f"| `model_type` | {titles} |", "|---" * (len(heads.TITLES) + 1) + "|", *lines])


def page() -> str:
    """The text of the page with its table between the two comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page())
