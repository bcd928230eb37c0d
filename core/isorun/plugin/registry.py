"""Lookup of backends: entry points of the group ``isorun.backends``, and backends that a program has registered.

Reading entry points imports no backend; :func:`get` imports one, and reports every mistake of its plugin as an error
about that plugin. Each process reads the entry points once. :mod:`isorun.plugin.listing` describes all backends without
importing the plugins of others into this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any

from isorun.errors import BackendNotFound, BackendUnavailable, InvalidArgument, in_words
from isorun.plugin import contract, signatures, unloadable, validation
from isorun.plugin import names as backend_names
from isorun.plugin.backend import Backend
from isorun.system.arguments import check_text
from isorun.system.interruption import interrupts
from isorun.types import Availability

GROUP = "isorun.backends"
_OWN = "isorun"  # the distribution
_METHODS = (
    *("availability", "probe", "installed", "refuse_device_arrays", "diagnose", "version", "members", "read_options"),
    "compile",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An installed backend.

    Attributes:
        target: its class, as ``module:Class``.
        distribution, version: what installed it; empty if that is unknown.
        refusal: why it cannot be used; empty if nothing is known against it.
        remedy: what to do about that.
    """

    name: str
    target: str
    distribution: str
    version: str = ""
    refusal: str = ""
    remedy: str = ""

    @property
    def own(self) -> bool:
        """Whether it is one of isorun's backends."""
        return self.distribution == _OWN

    @property
    def owner(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip() or "an unknown distribution"

    def report(self) -> str:
        """The remedy for a bug of the plugin."""
        return f"Report it to the authors of {self.owner}."


@cache
def entries() -> tuple[Entry, ...]:
    """The installed backends by name, those that are refused included. No backend is imported."""
    distinct = {}
    for point in reversed(list(metadata.entry_points(group=GROUP))):  # the first on the path wins
        about: Any = point.dist.metadata if point.dist else {}
        if about and about["Name"]:  # else the remains of a distribution that was uninstalled
            distinct[point.name, point.value] = Entry(point.name, point.value, about["Name"], about["Version"] or "")
    ordered = sorted(distinct.values(), key=lambda entry: (entry.name, not entry.own, entry.distribution, entry.target))
    return tuple(_judged(entry, [namesake for namesake in ordered if namesake.name == entry.name]) for entry in ordered)


def _judged(entry: Entry, same: Sequence[Entry]) -> Entry:
    """An entry, refused if its name is invalid or belongs to another one."""
    others = sorted({namesake.distribution for namesake in same} - {entry.distribution})
    uninstall = f"Uninstall it: pip uninstall {entry.distribution}"
    if problem := backend_names.problem(entry.name):
        return replace(entry, refusal=problem, remedy=entry.report())
    if not entry.own and any(namesake.own for namesake in same):
        refusal = f"its name {entry.name!r} belongs to a backend of isorun, and {entry.owner} registers it too"
        return replace(entry, refusal=refusal, remedy=uninstall)
    if len(same) > 1 and not entry.own:
        owners = " and ".join(f"{namesake.distribution} ({namesake.target})" for namesake in same)
        remedy = f"Uninstall all but one: pip uninstall {others[-1]}" if others else entry.report()
        return replace(entry, refusal=f"{len(same)} classes are registered under this name: {owners}", remedy=remedy)
    return entry


def refresh() -> None:
    """Discover backends again, after a distribution was installed or removed."""
    importlib.invalidate_caches()
    entries.cache_clear()


_registered: dict[str, type[Backend]] = {}


def register(name: str, backend: type[Backend]) -> None:
    """Register a backend in this process, without installing a distribution. Child processes do not have it.

    Args:
        name: its name.
        backend: its class.

    Raises:
        InvalidArgument: the name is invalid or taken, or the class is not a valid backend.
    """
    check_text(name, "name")
    if problem := backend_names.problem(name):
        raise InvalidArgument(problem)
    if name in names():
        remedy = ", or unregister() it first" if name in _registered else f": {entry(name).owner} provides it"
        raise InvalidArgument(f"A backend {name!r} already exists. Choose another name{remedy}")
    try:
        _create(backend, name, _program(name, backend))
    except BackendUnavailable as error:
        raise InvalidArgument(f"The backend {name!r} cannot be registered: {error.reason}") from error
    _registered[name] = backend


def unregister(name: str) -> None:
    """Remove a backend that :func:`register` added.

    Raises:
        BackendNotFound: there is none of that name.
        InvalidArgument: a distribution provides it.
    """
    check_text(name, "name")
    if _registered.pop(name, None) is not None:
        return
    if name.partition(":")[0] not in names():
        raise BackendNotFound(name, names())
    raise InvalidArgument(
        f"The backend {name!r} was not registered by this program: {entry(name).owner} provides it. To do without it, "
        f"name other backends, or uninstall the distribution"
    )


def registered() -> list[str]:
    """The names of the backends that this program has registered."""
    return sorted(_registered)


def _program(name: str, backend: Any) -> Entry:
    module, what = getattr(backend, "__module__", ""), getattr(backend, "__qualname__", repr(backend))
    return Entry(name, f"{module}:{what}", f"the program's module {module}")


def names() -> list[str]:
    """The names of the backends, sorted. Nothing is imported."""
    valid = {entry.name for entry in entries() if not backend_names.problem(entry.name)}
    return sorted(valid | _registered.keys())


def get(name: str) -> Backend:
    """The backend of that name, such as ``ort-cpu`` or ``ort-ep:openvino``.

    Raises:
        BackendNotFound: there is none; with the most similar name.
        BackendUnavailable: its plugin is refused, invalid, or of another version of the contract.
    """
    check_text(name, "backend")
    family, colon, member = name.partition(":")
    cls, entry = _class(name, family)
    if colon:
        known = _requestable(cls, entry)
        if member not in known:
            raise BackendNotFound(name, [f"{family}:{member}" for member in known] or names())
    return _create(cls, name, entry)


def entry(name: str) -> Entry:
    """The entry of an installed backend, or of a member of one. Raises ``BackendNotFound`` if it is not installed."""
    check_text(name, "backend")
    family = name.partition(":")[0]
    for candidate in entries():
        if candidate.name == family:  # isorun's own come first
            return candidate
    raise BackendNotFound(name, names())


def members(name: str) -> tuple[str, ...] | None:
    """The members of a family on this machine; ``None`` for a single backend.

    Raises:
        BackendUnavailable: its ``members()`` raises, or returns something else than names; or as :func:`get`.
    """
    return _members(*_class(name, name))


def requestable(name: str) -> tuple[str, ...]:
    """The members of a family that may be requested: those on this machine, and those that can say why they are not.
    Raises errors as :func:`members`."""
    return _requestable(*_class(name, name))


def _requestable(cls: type[Backend], entry: Entry) -> tuple[str, ...]:
    absent = _members(cls, entry, "absent_members")
    return tuple(dict.fromkeys([*(_members(cls, entry) or ()), *(absent or ())]))


def _members(cls: type[Backend], entry: Entry, method: str = "members") -> tuple[str, ...] | None:
    """The names that a class method of a family returns; ``None`` for a single backend."""
    with _blamed(entry.name, f"its {method}()", entry.report()):
        members: Any = getattr(cls, method)()
    if members is None:
        return None
    listed = isinstance(members, tuple | list)
    if not listed or not all(map(backend_names.is_member, members)) or len(set(members)) < len(members):
        raise BackendUnavailable(
            entry.name,
            f"its {method}() must return None or a tuple of distinct names without colons, got {members!r}",
            entry.report(),
        )
    return tuple(members)


def availability(backend: Backend) -> Availability:
    """A backend's availability; not available if its method raises or returns something else."""
    try:
        return ask_availability(backend)
    except BackendUnavailable as error:
        return Availability(ok=False, reason=error.reason, remedy=error.remedy)


def ask_availability(backend: Backend, *, probe: bool = True) -> Availability:
    """What a plugin says of its availability.

    Args:
        probe: whether to load what only loading can tell (:meth:`Backend.probe`).

    Raises:
        BackendUnavailable: as :func:`ask`, or its devices are no names.
    """
    own = type(backend).availability is not Backend.availability
    answer: Availability = ask(backend, "availability" if own and probe else "installed", Availability)
    if answer.ok and probe and not own:
        answer = ask(backend, "probe", Availability)
    if not isinstance(answer.devices, tuple | list) or not all(isinstance(name, str) for name in answer.devices):
        reason = f"the devices of its Availability must be a tuple of names, got {answer.devices!r}"
        raise BackendUnavailable(backend.name, reason, _report(backend))
    return answer if answer.ok or answer.reason else replace(answer, reason="its plugin does not say why")


def version(backend: Backend) -> str | None:
    """The version of a backend's runtime. Raises ``BackendUnavailable`` as :func:`ask`."""
    answer: str | None = ask(backend, "version", str | None)
    return answer


def accelerators(backend: Backend, device: str) -> tuple[str, ...]:
    """The GPUs or NPUs that a device of a backend may be. Raises ``BackendUnavailable`` if there is no such device, or
    as :func:`ask`."""
    names = ask(backend, "accelerators", tuple | list, device)
    if not all(isinstance(name, str) for name in names):
        reason = f"its accelerators() must return names, got {names!r}"
        raise BackendUnavailable(backend.name, reason, _report(backend))
    return tuple(names)


def ask(backend: Backend, method: str, kind: Any, *arguments: Any) -> Any:
    """What a method of a plugin returns.

    Args:
        kind: the type that it must return.

    Raises:
        BackendUnavailable: it raises, or returns something else.
    """
    with _blamed(backend.name, f"its {method}()", _report(backend)):
        result = getattr(backend, method)(*arguments)
    if not isinstance(result, kind):
        expected = getattr(kind, "__name__", str(kind))
        reason = f"its {method}() must return {expected}, got {type(result).__name__}"
        raise BackendUnavailable(backend.name, reason, _report(backend))
    return result


@contextmanager
def _blamed(name: str, what: str, remedy: str) -> Iterator[None]:
    """Convert an exception of a plugin to an error about ``what`` of it raised one."""
    try:
        yield
    except BackendUnavailable:  # it says more than the line below
        raise
    except BaseException as error:
        if interrupts(error):
            raise
        raise BackendUnavailable(name, f"{what} raises {in_words(error)}", remedy) from error


def _report(backend: Backend) -> str:
    try:
        installed = entry(backend.name)
    except BackendNotFound:  # registered by the program, or in another environment
        return f"Report it to the authors of {backend.__module__}."
    return f"Report it to the authors of {installed.owner} (its entry point is {installed.name} = {installed.target})."


_import_check: Callable[[Entry], None] | None = None


@contextmanager
def checked_imports(check: Callable[[Entry], None]) -> Iterator[None]:
    """Call a function before a plugin of another distribution is imported, which may raise BackendUnavailable."""
    global _import_check
    before, _import_check = _import_check, check
    try:
        yield
    finally:
        _import_check = before


def _class(name: str, family: str) -> tuple[type[Backend], Entry]:
    """A backend's class, and what it belongs to."""
    if family in _registered:
        return _registered[family], _program(family, _registered[family])
    named = entry(name)
    if named.refusal:
        raise BackendUnavailable(name, named.refusal, named.remedy)
    if _import_check is not None and not named.own:
        _import_check(named)
    try:
        return _load(named), named
    except BaseException as error:
        if interrupts(error):
            raise
        reason, remedy = unloadable.why(error, named.target, named.distribution, named.owner)
        raise BackendUnavailable(name, reason, remedy) from error


def _load(entry: Entry) -> Any:
    from stevedore.named import NamedExtensionManager

    class One(NamedExtensionManager):  # type: ignore[type-arg]  # not generic in older versions
        """stevedore's manager of one entry point, without its cache of all."""

        def list_entry_points(self) -> list[metadata.EntryPoint]:
            return [metadata.EntryPoint(entry.name, entry.target, GROUP)]

    def fail(_manager: object, _point: object, error: BaseException) -> None:
        raise error

    return One(GROUP, names=[entry.name], on_load_failure_callback=fail)[entry.name].plugin


def _create(cls: Any, name: str, entry: Entry) -> Backend:
    """A backend, once its class was validated."""
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendUnavailable(
            name, f"its entry point {entry.target!r} is not a subclass of isorun.plugin.Backend", entry.report()
        )
    declared = getattr(cls, "contract", None)
    if problem := contract.problem(declared):
        raise BackendUnavailable(name, f"{entry.owner} {problem}", _other_contract(entry, declared))
    with _blamed(name, "its class cannot be instantiated: it", entry.report()):
        backend = cls(name)
    if getattr(backend, "name", None) != name:
        reason = f"its __init__() must call super().__init__(name), and its name is {getattr(backend, 'name', None)!r}"
        raise BackendUnavailable(name, reason, entry.report())
    with _blamed(name, "its attribute `capabilities`", entry.report()):
        capabilities = backend.capabilities
    for problem in (*validation.problems(capabilities), *signatures.problems(backend, Backend, _METHODS)):
        raise BackendUnavailable(name, f"it is invalid: {problem}", entry.report())
    return backend


def _other_contract(entry: Entry, declared: Any) -> str:
    newer = isinstance(declared, int) and declared > contract.CONTRACT
    return f"Upgrade {'isorun' if newer else 'the plugin'}: pip install --upgrade " + (
        "isorun" if newer else entry.distribution
    )
