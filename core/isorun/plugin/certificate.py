"""Certificates of conformance as packages keep them: ``certificates/NAME.json`` beside a package's ``__init__.py``.

``isorun conformance NAME --certificate FILE`` writes one; :mod:`isorun_conformance.certificate` makes it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError
from isorun.system import json_files

FORMAT = 1
"""The version of the document."""
_FACTS, _COUNTED = ("contract", "date", "versions", "hardware"), ("proved", "skipped", "known_failures", "failed")


def read(path: Path, backend: str | None = None) -> dict[str, Any]:
    """A certificate from its file.

    Args:
        backend: the backend that it must be of; ``None`` for any.

    Raises:
        IsorunError: the file is missing, or is not a certificate, or is that of another backend.
    """
    try:
        document = json_files.read(path)
    except (OSError, ValueError) as error:
        raise IsorunError(f"Cannot read the certificate {path}: {error}") from error
    complete = isinstance(document, Mapping) and document.keys() >= {"backend", *_FACTS, *_COUNTED}
    # Somebody may have edited it.
    if not complete or document.get("certificate") != FORMAT or not _is_well_typed(document):
        raise IsorunError(
            f"{path} is not a certificate of version {FORMAT}. Write one with "
            "`isorun conformance NAME --certificate FILE`"
        )
    if backend not in (None, document["backend"]):
        raise IsorunError(f"{path} is the certificate of {document['backend']!r}")
    return dict(document)


def _is_well_typed(document: Mapping[str, Any]) -> bool:
    mappings = {"versions", "hardware", *_COUNTED} - {"proved"}
    return isinstance(document["proved"], list) and all(isinstance(document[key], Mapping) for key in mappings)


def summary(name: str, module: str) -> dict[str, Any] | None:
    """What the certificate records that is installed with a backend, in numbers.

    Args:
        name: the backend's name; a colon is a dash in the name of the file.
        module: the backend's module; the certificate is in its top-level package. Nothing is imported.

    Returns:
        Contract, date, versions and hardware, and the numbers of what was proved, skipped and so on; ``problem`` alone
        if the file is not a certificate of this backend; ``None`` if there is no file.
    """
    spec = importlib.util.find_spec(module.partition(".")[0])
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "certificates" / f"{name.replace(':', '-')}.json"
        if not path.is_file():
            continue
        try:
            document = read(path, name)
        except IsorunError as error:
            return {"problem": str(error)}
        return {key: document[key] for key in _FACTS} | {key: len(document[key]) for key in _COUNTED}
    return None
