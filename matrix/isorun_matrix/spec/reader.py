"""Read a spec from a file, and report all its problems at once, with their lines."""

from __future__ import annotations

import re
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isorun.errors import BackendNotFound, BackendUnavailable, IsorunError, did_you_mean
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import listing
from isorun.plugin.backend import Backend
from isorun.system.packages import package_owners
from isorun.types import options
from isorun.types.devices import canonical
from isorun_matrix.spec import versions
from isorun_matrix.spec import yaml_reader as yamlfile
from isorun_matrix.spec.backends import Entry
from isorun_matrix.spec.spec import Spec
from isorun_matrix.spec.yaml_reader import Place, Problem

_TAG = re.compile(r"<\w+>|\[key\]")  # what pydantic adds to places: the branch of a union, and that a key is wrong

_PARTS = ("models", "backends", "shapes", "precisions", "threads", "machines")  # what cells are made of


def load(path: Path) -> Spec:
    """The spec in a YAML file, with absolute paths, and with names and options of backends checked.

    Backends of an isolated environment are checked in it, unless it is still to be created.

    Raises:
        SpecError: with every problem of the file, one a line. What is wrong is left out of the checks that follow, so
            that one mistake does not hide another.
    """
    root, data, problems = yamlfile.read(path)
    data = {key: value for key, value in data.items() if not key.startswith("x-")}
    pruned = _Pruned(data)
    spec = None
    while spec is None:
        try:
            spec = Spec.model_validate(pruned.data, context={"folder": path.absolute().parent})
        except ValidationError as error:
            places = [(pruned.place_in_file(place_of(detail)), detail) for detail in error.errors()]
            problems += [(place, sentence(detail)) for place, detail in places if not pruned.explains(place)]
            if not pruned.remove(place_of(detail) for detail in error.errors()):
                break
    if spec is not None:
        later = [*spec.problems(), *_backend_problems(spec), *_environment_problems(spec, pruned)]
        if not any(pruned.explains((part,)) for part in _PARTS):
            later += spec.conflicts()
        problems += [(pruned.place_in_file(place), text) for place, text in later]
    if problems:
        raise yamlfile.error(
            path, root, list({place: (place, text) for place, text in reversed(problems)}.values())[::-1]
        )
    assert spec is not None
    return spec


class _Pruned:
    """A spec's data without the parts that are invalid."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = _unshared(data)
        self._removed: set[Place] = set()
        self._left: dict[Place, list[int]] = {}  # of each list with removed items, the original indices of the others

    def place_in_file(self, place: Place) -> Place:
        """A place in what is left, as a place in the file."""
        existing: Place = ()
        for part in place:
            existing += (self._left[existing][part] if isinstance(part, int) and existing in self._left else part,)
        return existing

    def explains(self, place: Place) -> bool:
        """Whether something at or below a place was removed, which may be all that is wrong there."""
        return any(removed[: len(place)] == place for removed in self._removed)

    def remove(self, places: Iterable[Place]) -> bool:
        """Remove what is at some places; returns whether anything could be removed."""
        existing = {self._existing(place) for place in places} - {()}
        for place in sorted(existing, key=lambda place: [str(part).zfill(9) for part in place], reverse=True):
            *parents, last = place
            holder: Any = self.data
            for part in parents:
                holder = holder[part]
            original = self.place_in_file(place)
            if isinstance(holder, list):
                self._left.setdefault(original[:-1], list(range(len(holder)))).pop(int(last))
            del holder[last]
            self._removed.add(original)
        return bool(existing)

    def _existing(self, place: Place) -> Place:
        """The place, or the nearest parent that exists. What lacks a key is removed as a whole."""
        value: Any = self.data
        for index, part in enumerate(place):
            inside = isinstance(value, dict) and part in value
            if not inside and not (isinstance(value, list) and isinstance(part, int) and part < len(value)):
                return place[:index]
            value = value[part]
        return place


def _unshared(value: Any) -> Any:
    """A copy in which what was written once and used several times, with an anchor, is there several times."""
    if isinstance(value, dict):
        return {key: _unshared(child) for key, child in value.items()}
    return [_unshared(child) for child in value] if isinstance(value, list) else value


def place_of(error: ErrorDetails) -> Place:
    """The keys and indices to the place of one of pydantic's errors."""
    return tuple(part for part in error["loc"] if not _TAG.fullmatch(str(part)))


def sentence(error: ErrorDetails, kind: type[BaseModel] = Spec) -> str:
    """One of pydantic's errors about data of a kind in words, without its place."""
    if error["type"] == "extra_forbidden":
        return f"unknown key{did_you_mean(str(error['loc'][-1]), _keys_at(kind, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return "this key is required"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "lengths":
        return error["msg"]
    if error["type"] == "too_short":
        return "must not be empty"
    if error["type"] == "string_pattern_mismatch":
        characters = "ASCII letters, digits, dots, dashes and underscores"
        return f"must be of {characters}, and start with a letter or digit, got {reprlib.repr(error['input'])}"
    if error["type"] == "model_type":
        return f"must be a mapping of keys to values, got {reprlib.repr(error['input'])}"
    message = (
        error["msg"]
        .replace("Input should", "must")
        .replace("List should", "must")
        .replace("a valid dictionary", "a mapping")
    )
    return f"{_lowered(message)}, got {reprlib.repr(error['input'])}"


def _lowered(message: str) -> str:
    """A sentence to follow a colon."""
    return f"{message[0].lower()}{message[1:]}"


def _keys_at(annotation: Any, place: Sequence[int | str]) -> list[str]:
    """The keys of the model class at a place of :class:`Spec`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not place:
            return list(annotation.model_fields)
        return _keys_at(annotation.model_fields[str(place[0])].annotation, place[1:])
    arguments = get_args(annotation)
    if get_origin(annotation) in (list, dict) and place:
        return _keys_at(arguments[-1], place[1:])
    if get_origin(annotation) in (Union, types.UnionType):
        tag = place[0] if place and str(place[0]).startswith("<") else None
        for member in arguments:
            if tag is None or tag in [getattr(item, "tag", None) for item in getattr(member, "__metadata__", ())]:
                keys = _keys_at(member, place[1:] if tag else place)
                if keys:
                    return keys
        return []
    return _keys_at(annotation.__origin__, place) if hasattr(annotation, "__metadata__") else []


def _backend_problems(spec: Spec) -> Iterator[Problem]:
    for index, entry in enumerate(spec.backends):
        if entry.environment is not None:
            continue
        yield from entry_problems(entry, ("backends", index), listing.load)
        if spec.device is not None and entry.device is None:
            problems = entry_problems(Entry(name=entry.name, device=spec.device), (), listing.load)
            yield from (problem for problem in problems if problem[0] == ("device",))
        if old := _too_old(entry.name):
            yield ("backends", index), old
    reference = Entry(name=spec.reference.backend, precisions=[spec.reference.precision])
    for place, problem in entry_problems(reference, (), listing.load):
        yield ("reference", {"name": "backend", "precisions": "precision"}[str(place[0])]), problem


def _too_old(backend: str) -> str | None:
    """Why the runtime of a backend that is installed here is too old."""
    try:
        package = listing.load(backend).capabilities.package
    except (BackendNotFound, BackendUnavailable):
        return None
    owners = [] if package is None else package_owners(package)
    return next(iter(versions.too_old({owner: version(owner) for owner in owners})), None)


def entry_problems(entry: Entry, place: Place, find: Callable[[str], Backend]) -> Iterator[Problem]:
    """Names, threads, precisions and options that the backend lacks. Its cells report whether it is available."""
    try:
        offers = find(entry.name).capabilities
    except BackendNotFound as error:
        yield (*place, "name"), _lowered(str(error))
        return
    except BackendUnavailable:  # a broken plugin: its cells report it
        return
    if entry.threads is not None and not offers.sets_threads:
        yield (*place, "threads"), f"{entry.name} does not support threads. Omit it."
    if entry.device is not None and canonical(entry.device, offers.devices) is None:
        near = did_you_mean(entry.device, offers.devices)
        yield (*place, "device"), f"{entry.name} does not support device {entry.device!r}{near}"
    choices = entry.options if isinstance(entry.options, list) else [entry.options]
    for index, choice in enumerate(choices):
        number = (index,) if isinstance(entry.options, list) else ()
        for key, problem in options.problems(offers.options, choice):
            yield (*place, "options", *number, key), f"{entry.name}: {problem}"
    for index, precision in enumerate(entry.precisions or ()):
        if precision not in offers.precisions:
            instead = offers.refused.get(precision)
            why = f": {instead}" if instead else did_you_mean(precision, offers.precisions)
            yield (*place, "precisions", index), f"{entry.name} does not support {precision!r}{why}"


def _environment_problems(spec: Spec, pruned: _Pruned) -> Iterator[Problem]:
    """Environments that do not exist and are not declared, or differ from their declaration; and their backends."""
    created = environments.names()
    for name, declared in spec.environments.items():
        for index, requirement in enumerate(declared.install):
            if problem := versions.excluded(requirement):
                yield ("environments", name, "install", index), problem
    for name in spec.isolated:
        if pruned.explains(("environments", name)):
            continue
        definition = spec.environments.get(name)
        entries = {index: entry for index, entry in enumerate(spec.backends) if entry.environment == name}
        place: Place = ("environments", name) if definition else ("backends", min(entries), "environment")
        if name not in created:
            if definition is None:
                known = did_you_mean(name, {*created, *spec.environments})
                yield place, f"unknown environment {name!r}{known}. Declare it under environments."
            continue
        try:
            environment = environments.get(name)
            if definition is not None:
                environment.require(definition.python, definition.install)
            with closing(Worker(environment)) as worker:
                for index, entry in entries.items():
                    yield from entry_problems(entry, ("backends", index), worker.get)
        except IsorunError as error:
            yield place, _lowered(str(error))
