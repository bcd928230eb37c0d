"""Descriptions of all backends, without importing other people's plugins into this process.

A plugin may print, hang or abort where it is imported. Each distribution but isorun's own is therefore described by a
child process with a time limit, as is whatever loads a library to answer: it costs the backends in question their rows,
and nothing else. ``python -m isorun.plugin.listing FILE NAME...`` is that child; with ``--load``, for :func:`load`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.plugin import certificate, contract, registry
from isorun.plugin.backend import Backend
from isorun.plugin.described_backend import DescribedBackend
from isorun.plugin.described_backend import describe as describe_backend
from isorun.system.cache import Cache, sha256
from isorun.system.subprocesses import Exit, ask, tell
from isorun.types import Availability
from isorun.types.options import Option

SECONDS = 30.0
"""The time limit of a child process."""
_KIND = "plugins"  # of cache entries
_DAY = 86400
_LOAD = "--load"


@dataclass(frozen=True, kw_only=True)
class Description:
    """A backend, as ``isorun backends`` shows it.

    Attributes:
        name: its name, or the name of its family if it cannot be loaded.
        status: ``available``; ``unavailable`` here for a reason; or ``broken``, by a mistake of its plugin.
        reason, remedy: why it is not available, and what to do.
        distribution: what installed it, with its version.
        version: the version of the runtime.
        contract: the version of the plugin contract that it declares; 0 if it cannot be loaded.
        devices, unverified, precisions, priority: from its capabilities.
        options: the fields of each :class:`Option` by key.
        certificate: what its certificate of conformance records (:func:`isorun.plugin.certificate.summary`).
    """

    name: str
    status: str = "broken"
    reason: str = ""
    remedy: str = ""
    distribution: str = ""
    version: str | None = None
    contract: int = 0
    devices: Sequence[str] = ()
    unverified: Sequence[str] = ()
    precisions: Sequence[str] = ()
    priority: int | None = 0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None

    @property
    def problem(self) -> str:
        """Why it cannot be used, and what to do; empty if it is available."""
        return "" if self.status == "available" else f"{self.reason}. {self.remedy}"


def descriptions() -> list[Description]:
    """Every backend by name, each member of a family on this machine in its place, and each backend that is refused."""
    installed = registry.entries()
    refused = [_refused(entry) for entry in installed if entry.refusal]
    usable = [entry for entry in installed if not entry.refusal]
    descriptions = [*_describe_own([entry.name for entry in usable if entry.own]), *refused]
    for name in registry.registered():
        descriptions += describe(name)
    others = _by_distribution([entry for entry in usable if not entry.own])
    for described in _in_children(others):
        descriptions += described
    return sorted(descriptions, key=lambda description: description.name)


def candidates(cache: Cache) -> list[Description]:
    """The candidates of ``backend="auto"``, highest priority first, unavailable ones included.

    Other people's plugins are described once and remembered until they change, since a session should not wait for a
    child process; failures are remembered for a day.

    Args:
        cache: where descriptions are kept.
    """
    usable = [entry for entry in registry.entries() if not entry.refusal]
    own = [entry.name for entry in usable if entry.own] + registry.registered()
    descriptions = [description for name in own for description in describe(name, probe=False)]
    for entries in _by_distribution([entry for entry in usable if not entry.own]):
        descriptions += _remembered(entries, cache)
    ordered = [description for description in descriptions if description.priority is not None]
    ordered.sort(key=lambda description: (-(description.priority or 0), description.name))
    return ordered


def describe(name: str, *, probe: bool = True) -> list[Description]:
    """A backend or each member of a family, in this process.

    Args:
        name: as an entry point has it.
        probe: whether to load what only loading can tell (:meth:`Backend.probe`).
    """
    owner = _owner(name)
    try:
        backend = registry.get(name)
        members = () if ":" in name else registry.members(name)
        backends = [registry.get(f"{name}:{member}") for member in members or ()] or [backend]
    except BackendUnavailable as error:
        return [Description(name=name, distribution=owner, reason=error.reason, remedy=error.remedy)]
    return [_described(backend, owner, probe) for backend in backends]


def load(name: str) -> Backend:
    """A backend, for a program that must survive a plugin that prints, hangs or ends the process.

    Other people's plugins are not imported: a child process describes them, once for each name. What is returned for
    them has capabilities, an availability and a version, and compiles nothing.

    Raises:
        BackendNotFound: there is none of that name.
        BackendUnavailable: it is broken.
    """
    if name.partition(":")[0] in registry.registered():
        return registry.get(name)
    entry = registry.entry(name)
    if entry.own or entry.refusal:
        return registry.get(name)
    reported = _found_elsewhere(name, entry)
    if "installed" in reported:
        raise BackendNotFound(name, reported["installed"])
    if "reason" in reported:
        raise BackendUnavailable(name, reported["reason"], reported["remedy"])
    return DescribedBackend(name, reported)


@cache
def _found_elsewhere(name: str, entry: registry.Entry) -> Mapping[str, Any]:
    """What :func:`_found` returns in a child process."""
    events, exit_ = ask(__name__, _LOAD, name, timeout=SECONDS)
    if events:
        return events[-1]
    reason, remedy = _ended(exit_, entry.owner)
    return {"reason": reason, "remedy": remedy}


def _found(name: str) -> Mapping[str, Any]:
    """What a backend declares; or the ``reason`` why it is broken, and a ``remedy``; or the names ``installed``."""
    try:
        return describe_backend(registry.get(name))
    except BackendNotFound as error:
        return {"installed": error.installed}
    except BackendUnavailable as error:
        return {"reason": error.reason, "remedy": error.remedy}


def _described(backend: Backend, owner: str, probe: bool) -> Description:
    offers = backend.capabilities
    description = Description(
        name=backend.name,
        distribution=owner,
        contract=backend.contract,
        devices=offers.devices,
        unverified=offers.unverified,
        precisions=offers.precisions,
        priority=offers.priority,
        options={key: asdict(Option.of(value)) for key, value in offers.options.items()},
        certificate=certificate.summary(backend.name, type(backend).__module__),
    )
    try:
        availability = registry.ask(backend, "availability" if probe else "installed", Availability)
        version = registry.ask(backend, "version", str | None)
    except BackendUnavailable as error:
        return replace(description, reason=error.reason, remedy=error.remedy)
    status = "available" if availability.ok else "unavailable"
    return replace(
        description, status=status, version=version, reason=str(availability.reason), remedy=str(availability.remedy)
    )


def _describe_own(names: Sequence[str]) -> Iterator[Description]:
    """isorun's own: in this process as far as nothing has to be loaded."""
    for name in names:
        for description in describe(name, probe=False):
            if description.status == "available" and type(registry.get(description.name)).probe is not Backend.probe:
                yield from _in_child([description.name], _owner(name))
            else:
                yield description


def _by_distribution(entries: Sequence[registry.Entry]) -> list[list[registry.Entry]]:
    grouped: dict[str, list[registry.Entry]] = {}
    for entry in entries:
        grouped.setdefault(entry.distribution, []).append(entry)
    return list(grouped.values())


def _in_children(groups: Sequence[Sequence[registry.Entry]]) -> Iterator[list[Description]]:
    def work(entries: Sequence[registry.Entry]) -> list[Description]:
        return _in_child([entry.name for entry in entries], entries[0].owner)

    if groups:
        with ThreadPoolExecutor(max_workers=min(8, len(groups))) as pool:
            yield from pool.map(work, groups)


def _in_child(names: Sequence[str], owner: str) -> list[Description]:
    """The backends of one distribution. One that ends the process is broken; the others continue in another."""
    descriptions: list[Description] = []
    remaining = list(names)
    while remaining:
        events, exit_ = ask(__name__, *remaining, timeout=SECONDS)
        descriptions += [Description(**event["backend"]) for event in events if "backend" in event]
        if events and "done" in events[-1]:
            break
        blamed = next((event["loading"] for event in reversed(events) if "loading" in event), remaining[0])
        reason, remedy = _ended(exit_, owner)
        descriptions.append(Description(name=blamed, distribution=owner, reason=reason, remedy=remedy))
        remaining = remaining[remaining.index(blamed) + 1 :]
    return descriptions


def _ended(exit_: Exit, owner: str) -> tuple[str, str]:
    """The reason and the remedy for a plugin that ends the process which describes it."""
    last = f": {exit_.last_line}" if exit_.last_line else ""
    remedy = f"Uninstall {owner}, or report it to its authors."
    return f"the process that loads it {exit_.how}{last}", remedy


def _remembered(entries: Sequence[registry.Entry], cache: Cache) -> list[Description]:
    parts = [sys.executable, contract.CONTRACT, *((entry, _stamp(entry.target)) for entry in entries)]
    key = sha256(repr(parts).encode())[:40]
    today = sha256(f"{key} {int(time.time() // _DAY)}".encode())[:40]
    stored = cache.get(_KIND, key) or cache.get(_KIND, today)
    if stored is None:
        descriptions = _in_child([entry.name for entry in entries], entries[0].owner)
        healthy = all(description.status != "broken" for description in descriptions)
        meta = {"described": [asdict(description) for description in descriptions]}
        stored = cache.get_or_make(_KIND, key if healthy else today, lambda _: meta)
    return [Description(**fields) for fields in stored.meta["described"]]


def _stamp(target: str) -> Any:
    """What changes with the files of a plugin's package."""
    try:
        spec = importlib.util.find_spec(target.partition(":")[0].partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in folder.rglob("*.py")] or [Path(spec.origin or os.devnull)]
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file())


def _refused(entry: registry.Entry) -> Description:
    return Description(name=entry.name, distribution=entry.owner, reason=entry.refusal, remedy=entry.remedy)


def _owner(name: str) -> str:
    try:
        return registry.entry(name).owner
    except BackendNotFound:
        return "this program"


def _main(path: str, *names: str) -> None:
    if names[0] == _LOAD:
        tell(path, **_found(names[1]))
        os._exit(0)
    for name in names:
        tell(path, loading=name)
        for description in describe(name):
            tell(path, backend=asdict(description))
    tell(path, done=True)
    os._exit(0)  # a plugin's threads and exit handlers cannot delay it


if __name__ == "__main__":
    _main(*sys.argv[1:])
