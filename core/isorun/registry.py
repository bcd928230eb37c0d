"""Finding backends: entry points of the group ``isorun.backends``, read by stevedore.

Listing names imports no backend; asking for one imports that one alone. A name that two distributions
claim is an error that names both, not a race.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from isorun.backend import Backend
from isorun.errors import BackendNotFound, BackendUnavailable, IsorunError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "isorun.backends"

AUTO_ORDER = ("ort-cpu", "openvino")
"""What ``backend="auto"`` tries, in this order: the runtime with the most ONNX operators first."""


@cache
def entry_points() -> dict[str, EntryPoint]:
    """Every backend's name and entry point, sorted by name. Nothing is imported."""
    from stevedore.named import NamedExtensionManager

    found: dict[str, EntryPoint] = {}
    # Named, with no names: it reads the entry points and loads none.
    for point in NamedExtensionManager(GROUP, names=[]).list_entry_points():
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise IsorunError(
                f"Two distributions register the backend {point.name!r}: "
                f"{_owner(other)} ({other.value}) and {_owner(point)} ({point.value}). Uninstall one of them."
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
        point = entry_points()[name]
    except KeyError:
        raise BackendNotFound(name, names()) from None
    try:
        cls = point.load()
    except Exception as error:
        raise BackendUnavailable(
            name,
            f"its module does not import ({type(error).__name__}: {error})",
            f"Reinstall the distribution that provides it: {_owner(point)}.",
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendUnavailable(
            name,
            f"its entry point {point.value!r} is no subclass of isorun.backend.Backend",
            f"Report it to the authors of {_owner(point)}.",
        )
    return cls(name)


def _owner(point: EntryPoint) -> str:
    """The distribution that registers an entry point (stevedore's own list does not say)."""
    from importlib.metadata import distributions

    owners = [each.name for each in distributions() if point in each.entry_points]
    return owners[0] if owners else "an unknown distribution"
