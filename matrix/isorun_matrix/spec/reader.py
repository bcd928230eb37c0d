"""Read a spec from a file, and report all its problems at once, with their lines."""

from __future__ import annotations

import reprlib
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isorun.errors import BackendNotFound, BackendUnavailable, IsorunError, did_you_mean
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.parity import DEFAULT_TOLERANCES
from isorun.plugin import registry
from isorun.plugin.backend import Backend
from isorun.types import options
from isorun_matrix.spec import yaml_reader as yamlfile
from isorun_matrix.spec.backends import Entry
from isorun_matrix.spec.spec import Spec
from isorun_matrix.spec.yaml_reader import Place, Problem


def load(path: Path) -> Spec:
    """The spec in a YAML file, with absolute paths, and with names and options of backends checked.

    Backends of an isolated environment are checked in it, unless it is still to be created.

    Raises:
        SpecError: with every problem of the file, one a line.
    """
    root, data = yamlfile.read(path)
    try:
        spec = Spec.model_validate(data, context={"folder": path.absolute().parent})
    except ValidationError as error:
        raise yamlfile.error(path, root, [_problem(each) for each in error.errors()]) from None
    if problems := [*_backend_problems(spec), *_environment_problems(spec)]:
        raise yamlfile.error(path, root, problems)
    return spec


def _problem(error: ErrorDetails) -> Problem:
    """One of pydantic's errors as a place and a sentence."""
    place = tuple(part for part in error["loc"] if not str(part).startswith("<"))
    if error["type"] == "extra_forbidden":
        return place, f"unknown key{did_you_mean(str(place[-1]), _keys_at(Spec, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return place, "this key is missing"
    if error["type"] == "value_error":
        return place, str(error["ctx"]["error"])
    if error["type"] == "lengths":
        return place, error["msg"]
    if error["type"] == "model_type":
        return place, f"must be a mapping of keys to values, got {reprlib.repr(error['input'])}"
    message = (
        error["msg"]
        .replace("Input should", "must")
        .replace("List should", "must")
        .replace("a valid dictionary", "a mapping")
    )
    return place, f"{_lowered(message)}, got {reprlib.repr(error['input'])}"


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
            if tag is None or tag in [getattr(each, "tag", None) for each in getattr(member, "__metadata__", ())]:
                keys = _keys_at(member, place[1:] if tag else place)
                if keys:
                    return keys
        return []
    return _keys_at(annotation.__origin__, place) if hasattr(annotation, "__metadata__") else []


def _backend_problems(spec: Spec) -> Iterator[Problem]:
    for index, entry in enumerate(spec.backends):
        if entry.environment is None:
            yield from _entry_problems(entry, ("backends", index), registry.get)
    used = {precision for entry in spec.backends for precision in entry.precisions}
    for precision in spec.tolerances:
        if precision not in used and precision not in DEFAULT_TOLERANCES:
            known = did_you_mean(precision, used | DEFAULT_TOLERANCES.keys())
            yield ("tolerances", precision), f"no backend of this spec uses this precision{known}"
    try:
        registry.get(spec.reference.backend)
    except BackendNotFound as error:
        yield ("reference", "backend"), _lowered(str(error))
    except BackendUnavailable:
        pass


def _entry_problems(entry: Entry, place: Place, find: Callable[[str], Backend]) -> Iterator[Problem]:
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
    for key, problem in options.problems(offers.options, entry.options):
        yield (*place, "options", key), f"{entry.name}: {problem}"
    for precision in entry.precisions:
        if precision not in offers.precisions:
            instead = offers.refused.get(precision)
            why = f": {instead}" if instead else did_you_mean(precision, offers.precisions)
            yield (*place, "precisions"), f"{entry.name} does not support {precision!r}{why}"


def _environment_problems(spec: Spec) -> Iterator[Problem]:
    """Environments that do not exist and are not declared, or differ from their declaration; and their backends."""
    made = environments.names()
    for name in spec.isolated:
        declared = spec.environments.get(name)
        here = {index: entry for index, entry in enumerate(spec.backends) if entry.environment == name}
        place: Place = ("environments", name) if declared else ("backends", min(here), "environment")
        if name not in made:
            if declared is None:
                known = did_you_mean(name, {*made, *spec.environments})
                yield place, f"unknown environment {name!r}{known}. Declare it under environments."
            continue
        try:
            environment = environments.get(name)
            if declared is not None:
                environment.require(declared.python, declared.install)
            with closing(Worker(environment)) as worker:
                for index, entry in here.items():
                    yield from _entry_problems(entry, ("backends", index), worker.get)
        except IsorunError as error:
            yield place, _lowered(str(error))
