"""Finding backends: entry points of the group ``isorun.backends``, through stevedore.

Listing names imports no backend; asking for one imports that one alone. A name that two distributions
claim belongs to neither: to ask for it is an error that names both, and the others are none the worse.

Entry points are read from the installed distributions once in each process. stevedore's own cache file is not used: it
compares rounded times, so it misses what is installed or removed within two minutes of the last change.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata

from stevedore.named import NamedExtensionManager

from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.plugin.backend import Backend
from isorun.types import Availability, Capabilities

GROUP = "isorun.backends"

AUTO_ORDER = ("ort-cpu", "openvino")
"""What ``backend="auto"`` tries, in this order: the runtime with the most ONNX operators first."""


class _Installed(NamedExtensionManager):  # type: ignore[type-arg]  # older ones are not generic
    """stevedore's manager over what is installed now, rather than what its cache file remembers."""

    def list_entry_points(self) -> list[metadata.EntryPoint]:
        points: dict[str, list[metadata.EntryPoint]] = {}
        for each in metadata.distributions():
            # Most have no such group. metadata.entry_points() parses them all, which takes 2.5 times as long.
            if f"[{self.namespace}]" in (each.read_text("entry_points.txt") or ""):
                # Of two versions, the first on the path is the one that is imported.
                points.setdefault(each.name, list(each.entry_points.select(group=self.namespace)))
        return [point for group in points.values() for point in group]


@cache
def entry_points() -> dict[str, str | list[str]]:
    """Every backend's name and where its class is (``module:Class``), sorted by name. No backend is imported.

    A name that several distributions claim has a list of them in its place, each with its class.
    """
    found: dict[str, set[str]] = {}
    for point in _points():
        found.setdefault(point.name, set()).add(point.value)
    return {name: _owners(name) if len(values) > 1 else values.pop() for name, values in sorted(found.items())}


def _points() -> list[metadata.EntryPoint]:
    return _Installed(GROUP, names=[]).list_entry_points()  # named, with no names: it loads none


def refresh() -> None:
    """Look for backends again: this process remembers what it found."""
    importlib.invalidate_caches()
    entry_points.cache_clear()


def names() -> list[str]:
    """The names of the backends that are installed, sorted. Nothing is imported."""
    return list(entry_points())


def members() -> list[str]:
    """The names of the backends that are installed, with those that stand for several (``ort-ep``) replaced by what
    they stand for here. Every backend's module is imported, and no runtime."""
    found = []
    for name in names():
        try:
            several = type(get(name)).members()
        except Exception:  # noqa: BLE001 - one that is broken stands for itself, and whoever asks for it hears why
            several = None
        found += [f"{name}:{member}" for member in several] if several else [name]
    return found


def get(name: str) -> Backend:
    """The backend of that name, such as ``ort-cpu`` or ``ort-ep:openvino``.

    Raises:
        BackendNotFound: there is none; the message has the nearest name.
        BackendUnavailable: there is one, and its module does not import or its class is none of a backend; or there are
            two of that name.
    """
    family, colon, member = name.partition(":")
    try:
        value = entry_points()[family]
    except KeyError:
        raise BackendNotFound(name, names()) from None
    if not isinstance(value, str):
        raise BackendUnavailable(
            name,
            f"{len(value)} distributions register a backend of that name: {' and '.join(value)}",
            f"Uninstall all but one of them: pip uninstall {value[-1].partition(' ')[0]}",
        )
    cls = _load(family, value)
    if colon:
        known = cls.members()
        if known is None or member not in known:
            raise BackendNotFound(name, [f"{family}:{each}" for each in known] if known else names())
    return _made(cls, name, value)


def availability(backend: Backend) -> Availability:
    """What a backend says of being here; of one that raises instead, or says something else, that it is not."""
    try:
        here: object = backend.availability()
    except Exception as error:  # noqa: BLE001 - it promises not to raise; what it raises is the answer
        said = f"its availability() raises {type(error).__name__}: {error}"
    else:
        if isinstance(here, Availability):
            return here
        said = f"its availability() gives a {type(here).__name__}, and no isorun.types.Availability"
    return Availability(ok=False, reason=said, remedy=f"Report it to its authors: {type(backend).__module__}.")


def _load(name: str, value: str) -> type[Backend]:
    try:
        module, _, attribute = value.partition(":")
        cls = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # one that exits would end whoever lists backends, without a word
        raise BackendUnavailable(
            name,
            f"its module does not import ({type(error).__name__}: {error})",
            f"Reinstall the distribution that provides it: {_owner(name, value)}.",
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendUnavailable(
            name,
            f"its entry point {value!r} is no subclass of isorun.plugin.backend.Backend",
            _report(name, value),
        )
    return cls


def _made(cls: type[Backend], name: str, value: str) -> Backend:
    try:
        backend = cls(name)
    except Exception as error:
        reason = f"its class makes no backend ({type(error).__name__}: {error})"
        raise BackendUnavailable(name, reason, _report(name, value)) from error
    if not isinstance(getattr(backend, "capabilities", None), Capabilities):
        raise BackendUnavailable(
            name, "its class has no capabilities that are isorun.types.Capabilities", _report(name, value)
        )
    return backend


def _report(name: str, value: str) -> str:
    return f"Report it to the authors of {_owner(name.partition(':')[0], value)}."


def _owner(name: str, value: str) -> str:
    """The distribution that registers an entry point."""
    suffix = f" ({value})"
    owners = [owner.removesuffix(suffix) for owner in _owners(name) if owner.endswith(suffix)]
    return owners[0] if owners else "an unknown distribution"


def _owners(name: str) -> list[str]:
    """The distributions that register a backend of that name, each with its class."""
    points = [point for point in _points() if point.name == name]
    return sorted({f"{point.dist.name if point.dist else 'unknown'} ({point.value})" for point in points})
