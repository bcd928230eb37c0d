"""Descriptions of all backends, without importing other people's plugins into this process.

A plugin may print, hang or abort where it is imported. Each distribution but isorun's own is therefore described by a
child process with a time limit, as is whatever loads a library to answer: it costs the backends in question their rows,
and nothing else. ``python -m isorun.plugin.listing FILE NAME...`` is that child.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import site
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.plugin import contract, registry
from isorun.plugin.backend import Backend
from isorun.plugin.description import DescribedBackend, Description
from isorun.system.cache import Cache, sha256
from isorun.system.subprocesses import Exit, ask, tell
from isorun.types import Capabilities

SECONDS = 30.0
"""The time limit of a child process."""
AUTO_SECONDS = 6.0
"""Its time limit where a session with ``backend="auto"`` waits for it."""
_KIND, _IMPORTED = "plugins", "imported-plugins"  # of cache entries
_DAY, _WHILE = 86400, 600  # seconds for which a plugin that hangs, or that cannot be used for now, is not asked again
_LOAD = "--load"
_logger = logging.getLogger("isorun")


def descriptions() -> list[Description]:
    """Every backend by name, each member of a family on this machine in its place, and each backend that is refused."""
    installed = registry.entries()
    refused = [_refused(entry) for entry in installed if entry.refusal]
    usable = [entry for entry in installed if not entry.refusal]
    descriptions = [*_describe_own([entry.name for entry in usable if entry.own]), *refused]
    for name in registry.registered():
        descriptions += describe(name)
    others = _by_distribution([entry for entry in usable if not entry.own])
    for described in _at_once(_elsewhere, others):
        descriptions += described
    return sorted(_without_families(descriptions), key=lambda description: description.name)


def candidates(cache: Cache) -> list[Description]:
    """The candidates of ``backend="auto"``, highest priority first, unavailable ones included.

    Other people's plugins are described once and remembered until their files or the installed packages change, since
    a session should not wait for a child process. One that cannot be used is asked again after ten minutes; one that
    takes longer than :data:`AUTO_SECONDS` is broken, and asked again the next day. Broken ones come first, since nobody
    knows their priority.
    """
    installed = registry.entries()
    usable = [entry for entry in installed if not entry.refusal]
    own = [entry.name for entry in usable if entry.own] + registry.registered()
    descriptions = [description for name in own for description in describe(name, probe=False)]
    others = _by_distribution([entry for entry in usable if not entry.own])
    for described in _at_once(lambda entries: _remembered(entries, cache), others):
        descriptions += described
    broken = [_refused(entry) for entry in installed if entry.refusal and entry.name not in own]
    ordered = []
    for description in _without_families(descriptions):
        if not description.contract:
            broken.append(description)
        elif description.capabilities.priority is not None:
            ordered.append(description)
    ordered.sort(key=lambda description: (-(description.capabilities.priority or 0), description.name))
    return [*sorted(broken, key=lambda description: description.name), *ordered]


def describe(name: str, *, probe: bool = True) -> list[Description]:
    """A backend, and each member if it is a family, in this process.

    Args:
        name: as an entry point has it.
        probe: whether to load what only loading can tell (:meth:`Backend.probe`).
    """
    owner = _owner(name)
    try:
        backends = [registry.get(name)]
        members = None if ":" in name else registry.members(name)
        backends += [registry.get(f"{name}:{member}") for member in members or ()]
    except BackendUnavailable as error:
        return [Description(name=name, distribution=owner, reason=error.reason, remedy=error.remedy)]
    descriptions = [Description.of(backend, owner, probe=probe) for backend in backends]
    if members == () and descriptions[0].status == "available":
        return [_without_members(descriptions[0])]
    return descriptions


def _without_members(family: Description) -> Description:
    """A family of which no member is on this machine: its name alone runs nothing, or only with options."""
    reason = family.reason or "none of its members is installed"
    remedy = family.remedy or f"Install what provides one, and request it as {family.name}:MEMBER."
    return replace(family, status="unavailable", reason=reason, remedy=remedy)


def _without_families(descriptions: Sequence[Description]) -> list[Description]:
    """Without the families whose members are described, unless one has ended its process."""
    families = {description.name.partition(":")[0] for description in descriptions if ":" in description.name}
    return [description for description in descriptions if description.name not in families or not description.contract]


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
    described = {description.name: description for description in _elsewhere_once((entry,))}
    whole = described[entry.name]
    if not whole.contract:
        raise BackendUnavailable(name, whole.reason, whole.remedy)
    if name not in described:
        raise BackendNotFound(name, [known for known in described if ":" in known] or registry.names())
    return DescribedBackend(described[name])


def _describe_own(names: Sequence[str]) -> Iterator[Description]:
    """isorun's own: in this process as far as nothing has to be loaded."""
    for name in names:
        for description in _without_families(describe(name, probe=False)):
            if description.status == "available" and type(registry.get(description.name)).probe is not Backend.probe:
                yield from _in_child([description.name], _owner(name))
            else:
                yield description


def _by_distribution(entries: Sequence[registry.Entry]) -> list[list[registry.Entry]]:
    grouped: dict[str, list[registry.Entry]] = {}
    for entry in entries:
        grouped.setdefault(entry.distribution, []).append(entry)
    return list(grouped.values())


def _elsewhere(entries: Sequence[registry.Entry], seconds: float | None = None) -> list[Description]:
    """What :func:`describe` returns for the backends of one distribution in a child process."""
    return _in_child([entry.name for entry in entries], entries[0].owner, seconds)


_elsewhere_once = cache(_elsewhere)  # for each argument
_Group = Sequence[registry.Entry]


def _at_once(
    describe_group: Callable[[_Group], list[Description]], groups: Sequence[_Group]
) -> list[list[Description]]:
    if not groups:
        return []
    with ThreadPoolExecutor(max_workers=min(8, len(groups))) as pool:
        return list(pool.map(describe_group, groups))


def _in_child(names: Sequence[str], owner: str, seconds: float | None = None) -> list[Description]:
    """The backends of one distribution. One that ends the process is broken; the others continue in another.

    Args:
        seconds: the time limit of all of them together; ``None`` for :data:`SECONDS` of each process.
    """
    descriptions: list[Description] = []
    remaining = list(names)
    deadline = None if seconds is None else time.monotonic() + seconds
    while remaining:
        left = SECONDS if deadline is None else max(0.1, deadline - time.monotonic())
        events, exit_ = ask(__name__, *remaining, timeout=left)
        if exit_.timeout is not None and seconds is not None:
            exit_ = replace(exit_, timeout=seconds)
        descriptions += [Description.from_dict(event["backend"]) for event in events if "backend" in event]
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
    key = _key(entries)
    keys = {seconds: _key_for(key, seconds) for seconds in (_WHILE, _DAY)}
    stored = next(filter(None, (cache.get(_KIND, known) for known in (key, *keys.values()))), None)
    if stored is None:
        start = time.monotonic()
        descriptions = _elsewhere(entries, AUTO_SECONDS)
        hangs = time.monotonic() - start >= AUTO_SECONDS
        for description in descriptions:
            if description.status == "broken":
                until, longer = (" until tomorrow", ". `isorun backends` waits longer") if hangs else ("", "")
                problem = description.problem.rstrip(".")
                _logger.warning("backend='auto' skips %s%s: %s%s", description.name, until, problem, longer)
        if any(description.status != "available" for description in descriptions):
            key = keys[_DAY if hangs else _WHILE]
        meta = {"described": [description.as_dict() for description in descriptions]}
        stored = cache.get_or_make(_KIND, key, lambda _: meta)
    return [Description.from_dict(data) for data in stored.meta["described"]]


def _key_for(key: str, seconds: int) -> str:
    """A key that changes after this time."""
    return sha256(f"{key} {seconds} {int(time.time() // seconds)}".encode())[:40]


def check_import(entry: registry.Entry) -> None:
    """Check in a child process that a plugin can be imported, for a program that must survive that it cannot.

    A plugin that could is not imported again until it changes.

    Raises:
        BackendUnavailable: the child was killed by a signal, has exited, or has exceeded :data:`SECONDS`.
    """
    if problem := _import_problem(entry):
        raise BackendUnavailable(entry.name, *problem)


@cache
def _import_problem(entry: registry.Entry) -> tuple[str, str] | None:
    cache, key = Cache(), _key([entry])
    if cache.get(_IMPORTED, key):
        return None
    events, exit_ = ask(__name__, _LOAD, entry.name, timeout=SECONDS)
    if not events:
        return _ended(exit_, entry.owner)
    cache.get_or_make(_IMPORTED, key, lambda _: {"imported": entry.target})
    return None


def _key(entries: Sequence[registry.Entry]) -> str:
    declared = [field.name for field in fields(Capabilities)]
    stamps = [(entry, _stamp(entry.target)) for entry in entries]
    parts = [sys.executable, contract.CONTRACT, declared, _packages(), *stamps]
    return sha256(repr(parts).encode())[:40]


def _packages() -> Sequence[Any]:
    """What changes when a package is installed or removed."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return sorted((folder, Path(folder).stat().st_mtime_ns) for folder in folders if Path(folder).is_dir())


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
        with suppress(BackendUnavailable):  # which the parent reports when it imports the plugin
            registry.get(names[1])
        tell(path, loaded=names[1])
        os._exit(0)
    for name in names:
        tell(path, loading=name)
        for description in describe(name):
            tell(path, backend=description.as_dict())
    tell(path, done=True)
    os._exit(0)  # a plugin's threads and exit handlers cannot delay it


if __name__ == "__main__":
    _main(*sys.argv[1:])
