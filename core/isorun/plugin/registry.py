"""Discovery of backends: entry points of the group ``isorun.backends``, through stevedore.

Listing names imports no backend; :func:`get` imports one. If two distributions register the same name, getting it is an
error that names both; other backends are not affected. Each process reads the entry points once.
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
"""The candidates of ``backend="auto"`` in order: the runtime with the most ONNX operators first."""


class _Installed(NamedExtensionManager):  # type: ignore[type-arg]  # not generic in older versions
    """stevedore's manager without its cache file, which rounds times and so misses changes within two minutes."""

    def list_entry_points(self) -> list[metadata.EntryPoint]:
        return list(metadata.entry_points(group=self.namespace))


@cache
def entry_points() -> dict[str, str | list[str]]:
    """The class of each backend (``module:Class``) by name, sorted. No backend is imported.

    The value is a list of distributions with their classes if several register the name.
    """
    classes: dict[str, set[str]] = {}
    for point in _points():
        classes.setdefault(point.name, set()).add(point.value)
    return {name: _owners(name) if len(values) > 1 else values.pop() for name, values in sorted(classes.items())}


def _points() -> list[metadata.EntryPoint]:
    return _Installed(GROUP, names=[]).list_entry_points()  # without names, it loads none


def refresh() -> None:
    """Discover backends again, after a distribution was installed or removed."""
    importlib.invalidate_caches()
    entry_points.cache_clear()


def names() -> list[str]:
    """The names of the installed backends, sorted. Nothing is imported."""
    return list(entry_points())


def members() -> list[str]:
    """The names of the installed backends; a family (``ort-ep``) is replaced by its members on this machine.

    Imports the modules of backends, but no runtime.
    """
    found = []
    for name in names():
        try:
            family = type(get(name)).members()
        except Exception:  # noqa: BLE001 - get() raises the reason when it is used
            family = None
        found += [f"{name}:{member}" for member in family] if family else [name]
    return found


def get(name: str) -> Backend:
    """The backend of that name, such as ``ort-cpu`` or ``ort-ep:openvino``.

    Raises:
        BackendNotFound: it is not installed; with the most similar name.
        BackendUnavailable: its module cannot be imported, its class is not a backend, or several distributions register
            the name.
    """
    family, colon, member = name.partition(":")
    try:
        value = entry_points()[family]
    except KeyError:
        raise BackendNotFound(name, names()) from None
    if not isinstance(value, str):
        raise BackendUnavailable(
            name,
            f"{len(value)} distributions register a backend of this name: {' and '.join(value)}",
            f"Uninstall all but one: pip uninstall {value[-1].partition(' ')[0]}",
        )
    cls = _load(family, value)
    if colon:
        known = cls.members()
        if known is None or member not in known:
            raise BackendNotFound(name, [f"{family}:{each}" for each in known] if known else names())
    return _create(cls, name, value)


def availability(backend: Backend) -> Availability:
    """A backend's availability; not available if its method raises or returns something else."""
    try:
        result: object = backend.availability()
    except Exception as error:  # noqa: BLE001 - a bug of a plugin is the reason
        reason = f"its availability() raises {type(error).__name__}: {error}"
    else:
        if isinstance(result, Availability):
            return result
        reason = f"its availability() must return an isorun.types.Availability, got {type(result).__name__}"
    return Availability(ok=False, reason=reason, remedy=f"Report it to the authors of {type(backend).__module__}.")


def _load(name: str, value: str) -> type[Backend]:
    try:
        module, _, attribute = value.partition(":")
        cls = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a module may call sys.exit()
        raise BackendUnavailable(
            name,
            f"its module cannot be imported ({type(error).__name__}: {error})",
            f"Reinstall the distribution that provides it: {_owner(name, value)}.",
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendUnavailable(
            name,
            f"its entry point {value!r} is not a subclass of isorun.plugin.backend.Backend",
            _report(name, value),
        )
    return cls


def _create(cls: type[Backend], name: str, value: str) -> Backend:
    try:
        backend = cls(name)
    except Exception as error:
        reason = f"its class cannot be instantiated ({type(error).__name__}: {error})"
        raise BackendUnavailable(name, reason, _report(name, value)) from error
    if not isinstance(getattr(backend, "capabilities", None), Capabilities):
        raise BackendUnavailable(
            name, "its attribute `capabilities` must be an isorun.types.Capabilities", _report(name, value)
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
    """The distributions that register a name, each with its class."""
    points = [point for point in _points() if point.name == name]
    return sorted({f"{point.dist.name if point.dist else 'unknown'} ({point.value})" for point in points})
