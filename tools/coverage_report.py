"""The statements that the tests run, as Markdown: a total for each package, and the files below 85 %.

Reads what `coverage json` wrote: ``python tools/coverage_report.py coverage.json``. `make coverage` does all of it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

LIMIT = 85
_SMALL = 10  # a share of fewer statements says little


def table(files: dict[str, tuple[int, int]]) -> str:
    """The report.

    Args:
        files: path to (statements, those that were run).
    """
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    below = []
    for path, (statements, run) in files.items():
        packages[Path(path).parts[0]].update(statements=statements, run=run)
        if statements >= _SMALL and 100 * run < LIMIT * statements:
            below.append((run / statements, path, statements))
    rows = ["| package | statements | run |", "|---|---|---|"]
    packages["all"] = sum(packages.values(), Counter())
    rows += [f"| {name} | {n['statements']:,} | {n['run'] / n['statements']:.1%} |" for name, n in packages.items()]
    rows += ["", f"| file below {LIMIT} % | statements | run |", "|---|---|---|"]
    rows += [f"| {path} | {statements} | {share:.0%} |" for share, path, statements in sorted(below)]
    return "\n".join(rows)


def main() -> None:
    """Print the report of a file of `coverage json`."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    summaries = {path: entry["summary"] for path, entry in sorted(report["files"].items())}
    print(table({path: (summary["num_statements"], summary["covered_lines"]) for path, summary in summaries.items()}))


if __name__ == "__main__":
    main()
