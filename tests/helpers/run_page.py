"""Runs the code of a page of the documentation, as a reader would: ``python run_page.py PAGE`` in an empty folder.

Blocks run from top to bottom. Those in Python share one interpreter; ``console`` and ``sh`` run in a shell that stops
at the first error. A block in YAML that starts with a comment of a file name is written to that file. A block below
``<!-- not run: REASON -->`` is left out. Blocks of other languages show output or fragments.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+?) -->\n\n?)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    """A fenced block: its language, code, line on the page, and why it does not run (empty if it does)."""

    language: str
    code: str
    line: int
    reason: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in BLOCK.finditer(page):
        line = page.count("\n", 0, match.start("code")) + 1
        yield Block(match["language"], match["code"], line, match["reason"] or "")


def main(path: Path) -> None:
    """Run a page; what its code raises ends this."""
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.reason:
            continue
        print(f"--- {path.name}, line {block.line}", flush=True)
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.code  # so that tracebacks name the page's lines
            exec(compile(code, str(path), "exec"), namespace)
        elif block.language in ("console", "sh"):
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], check=True)
        elif block.language == "yaml" and (name := re.match(r"# ([\w-]+\.yaml)\n", block.code)):
            Path(name[1]).write_text(block.code, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
