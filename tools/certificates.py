"""Write the table of backends, from what they declare, and that of the hardware that they were verified on.

``python tools/certificates.py`` writes them between two comments of their documents; with ``--check`` it exits with 1
if one is out of date. A test does the same.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isorun.plugin import certificate

ROOT = Path(__file__).parents[1]
_GROUP = "isorun.backends"


def certificates() -> list[dict[str, Any]]:
    """All certificates of this repository, by backend and date."""
    folders = [ROOT / "backends" / "isorun_backends", *sorted((ROOT / "plugins").glob("*/isorun_*"))]
    paths = [path for folder in folders for path in sorted((folder / "certificates").glob("*.json"))]
    documents = [certificate.read(path) for path in paths]
    return sorted(documents, key=lambda document: (document["backend"], document["date"]))


def backends() -> dict[str, str]:
    """The classes that this repository registers by name, plugins included but for the template."""
    projects = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
    tables = [
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in projects
        if path.parent.name != "isorun-template"
    ]
    return {name: target for table in tables for name, target in table.get("entry-points", {}).get(_GROUP, {}).items()}


def backend_table() -> str:
    """What each backend declares, in Markdown: a row for each, those with a certificate first."""
    sys.path.extend(str(path.parent) for path in sorted((ROOT / "plugins").glob("*/pyproject.toml")))
    verified = {document["backend"].partition(":")[0]: document for document in certificates()}
    ordered = sorted(backends().items(), key=lambda item: item[0] not in verified)
    rows = [_declared(name, target, verified.get(name)) for name, target in ordered]
    return "\n".join(["| backend | what runs | devices | precisions | verified on |", "|---|---|---|---|---|", *rows])


def _declared(name: str, target: str, document: dict[str, Any] | None) -> str:
    module, _, attribute = target.partition(":")
    backend = getattr(importlib.import_module(module), attribute)
    what = backend.__doc__.partition("\n")[0].partition(". ")[0].rstrip(".")
    offers = backend.capabilities
    hardware = f"{document['hardware']['device']}, {document['date']}" if document else "not verified on hardware"
    devices = [f"{device}*" if device in offers.unverified else device for device in offers.devices]
    return f"| `{name}` | {what} | {', '.join(devices)} | {', '.join(offers.precisions)} | {hardware} |"


def table() -> str:
    """The table in Markdown: a row for each certificate, and for each backend without one."""
    return "\n".join(
        ["| backend | verified on | versions | result |", "|---|---|---|---|", *_rows(certificates(), list(backends()))]
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


DOCUMENTS = {
    ROOT / "README.md": ("backends", backend_table),
    ROOT / "docs" / "certificates.md": ("certificates", table),
}


def updated(path: Path) -> str:
    """The text of a document with its table between the two comments."""
    subject, write = DOCUMENTS[path]
    begin, end = f"<!-- {subject}: written by tools/certificates.py -->", f"<!-- end of {subject} -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{write()}\n{end}{after}"


def main(check: bool) -> int:
    """Write the documents, or only compare them."""
    stale = {path: text for path in DOCUMENTS if (text := updated(path)) != path.read_text(encoding="utf-8")}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)} {'is out of date: run python tools/certificates.py' if check else 'written'}")
        if not check:
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
