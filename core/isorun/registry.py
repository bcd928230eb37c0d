"""Finding backends: entry points of the group ``isorun.backends``, read by stevedore.

Listing names imports no backend; asking for one imports that one alone. A name that two distributions
claim is an error that names both, not a race.

Reading entry points takes a third of the time that a small model takes to load, most of it imports, so the
list is remembered beside the models until a folder on ``sys.path`` changes, as it does whenever a
distribution is installed or removed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from functools import cache
from pathlib import Path

from isorun.backend import Backend
from isorun.cache import Cache, sha256, write_atomically
from isorun.errors import BackendNotFound, BackendUnavailable, IsorunError

GROUP = "isorun.backends"

AUTO_ORDER = ("ort-cpu", "openvino")
"""What ``backend="auto"`` tries, in this order: the runtime with the most ONNX operators first."""


@cache
def entry_points() -> dict[str, str]:
    """Every backend's name and where its class is (``module:Class``), sorted by name. No backend is imported.

    Raises:
        IsorunError: two distributions claim one name.
    """
    folders = [[path, Path(path).stat().st_mtime_ns] for path in sys.path if Path(path).is_dir()]
    note = Cache().root / "entry-points" / f"{sha256(json.dumps(folders).encode())[:32]}.json"
    with contextlib.suppress(OSError, ValueError):  # not remembered: read them
        remembered = json.loads(note.read_text())
        if isinstance(remembered, dict) and remembered:
            return remembered
    found = _read()
    with contextlib.suppress(OSError):  # what cannot be remembered is read again, and nothing else is lost
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps(found).encode())
    return found


def _read() -> dict[str, str]:
    from stevedore.named import NamedExtensionManager

    found: dict[str, str] = {}
    # Named, with no names: it reads the entry points and loads none.
    for point in NamedExtensionManager(GROUP, names=[]).list_entry_points():
        other = found.setdefault(point.name, point.value)
        if other != point.value:
            raise IsorunError(
                f"Two distributions register the backend {point.name!r}: {_owner(point.name, other)} ({other}) "
                f"and {_owner(point.name, point.value)} ({point.value}). Uninstall one of them."
            )
    return dict(sorted(found.items()))


def names() -> list[str]:
    """The names of the backends that are installed, sorted. Nothing is imported."""
    return list(entry_points())


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BackendNotFound: there is none; the message has the nearest name.
        BackendUnavailable: there is one, and its module does not import.
    """
    try:
        value = entry_points()[name]
    except KeyError:
        raise BackendNotFound(name, names()) from None
    try:
        module, _, attribute = value.partition(":")
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise BackendUnavailable(
            name,
            f"its module does not import ({type(error).__name__}: {error})",
            f"Reinstall the distribution that provides it: {_owner(name, value)}.",
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendUnavailable(
            name,
            f"its entry point {value!r} is no subclass of isorun.backend.Backend",
            f"Report it to the authors of {_owner(name, value)}.",
        )
    return cls(name)


def _owner(name: str, value: str) -> str:
    """The distribution that registers an entry point."""
    from importlib.metadata import distributions

    for each in distributions():
        if any((point.group, point.name, point.value) == (GROUP, name, value) for point in each.entry_points):
            return each.name
    return "an unknown distribution"
