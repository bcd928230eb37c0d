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


def read(path: Path) -> dict[str, Any]:
    """A certificate from its file.

    Raises:
        IsorunError: the file is missing, or is not a certificate.
    """
    try:
        document = json_files.read(path)
    except (OSError, ValueError) as error:
        raise IsorunError(f"Cannot read the certificate {path}: {error}") from error
    missing = not isinstance(document, Mapping) or not document.keys() >= {"backend", *_FACTS, *_COUNTED}
    if missing or document.get("certificate") != FORMAT:
        raise IsorunError(
            f"{path} is not a certificate of version {FORMAT}. Write one with "
            "`isorun conformance NAME --certificate FILE`"
        )
    return dict(document)


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
            document = read(path)
        except IsorunError as error:
            return {"problem": str(error)}
        if document["backend"] != name:
            return {"problem": f"{path} is the certificate of {document['backend']!r}"}
        return {key: document[key] for key in _FACTS} | {key: len(document[key]) for key in _COUNTED}
    return None
