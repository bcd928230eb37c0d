"""Write the tables of the hardware that backends were verified on, from the certificates in this repository.

``python tools/certificates.py`` writes them between two comments of each document; with ``--check`` it exits with 1 if
one is out of date. A test does the same.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isorun.plugin import certificate

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "certificates.md")
BEGIN, END = "<!-- certificates: written by tools/certificates.py -->", "<!-- end of certificates -->"
_GROUP = "isorun.backends"


def certificates() -> list[dict[str, Any]]:
    """All certificates of this repository, by backend and date."""
    folders = [ROOT / "backends" / "isorun_backends", *sorted((ROOT / "plugins").glob("*/isorun_*"))]
    paths = [path for folder in folders for path in sorted((folder / "certificates").glob("*.json"))]
    documents = [certificate.read(path) for path in paths]
    return sorted(documents, key=lambda document: (document["backend"], document["date"]))


def backends() -> list[str]:
    """The names that this repository registers, plugins included but for the template."""
    projects = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
    tables = [tomllib.loads(path.read_text())["project"] for path in projects if path.parent.name != "isorun-template"]
    return [name for table in tables for name in table.get("entry-points", {}).get(_GROUP, {})]


def table() -> str:
    """The table in Markdown: a row for each certificate, and for each backend without one."""
    return "\n".join(
        ["| backend | verified on | versions | result |", "|---|---|---|---|", *_rows(certificates(), backends())]
    )


def _rows(documents: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    for document in documents:
        hardware = document["hardware"]
        machine = f"{hardware['device']}, {hardware['cores']} cores, {hardware['system']}; {document['date']}"
        versions = (f"{name} {version}" for name, version in document["versions"].items() if not _is_common(name))
        yield f"| `{document['backend']}` | {machine} | {', '.join(versions)} | {_result(document)} |"
    verified = {document["backend"].partition(":")[0] for document in documents}
    for name in names:
        if name not in verified:
            yield f"| `{name}` | not verified on hardware | | |"


def _is_common(package: str) -> bool:
    return package.startswith("isorun") or package in ("python", "numpy")


def _result(document: dict[str, Any]) -> str:
    counts = {name: len(document[name]) for name in ("proved", "known_failures", "failed", "not_run")}
    words = {"proved": "proved", "known_failures": "known to fail", "failed": "failed", "not_run": "not run"}
    return ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)


def updated(text: str) -> str:
    """A document with the table between its two comments."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(check: bool) -> int:
    """Write the documents, or only compare them."""
    stale = [path for path in DOCUMENTS if updated(path.read_text()) != path.read_text()]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date: run python tools/certificates.py' if check else 'written'}")
        if not check:
            path.write_text(updated(path.read_text()))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
