"""``modules.json`` and ``router_config.json`` of sentence-transformers: the modules that a text passes through."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from isorun.models import keys, sentence_keys
from isorun.system.arguments import check_text
from isorun.system.paths import inside

FILE = "modules.json"
ROUTER_FILES = ("router_config.json", "config.json")  # the second one as saved before version 5

TRANSFORMERS = ("Transformer", "MLMTransformer")
STATIC, STATIC_SPARSE = "StaticEmbedding", "SparseStaticEmbedding"
MASK = "MultiVectorMask"
SCORE = "LogitScore"
_ROUTERS = ("Router", "Asym")
_KINDS = (
    *(*TRANSFORMERS, STATIC, "WordWeights", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"),
    *("SpladePooling", STATIC_SPARSE, MASK, SCORE, *_ROUTERS),
)
_PACKAGES = ("sentence_transformers", "pylate", "")
_MAX_MODULES = 64
_TASKS = ("query", "document")  # those of a model without a router, where they select a prompt


class Module(NamedTuple):
    """A module of a model.

    Attributes:
        kind: the name of its class.
        path: its folder, relative to the model's.
    """

    kind: str
    path: str


@dataclass(frozen=True)
class Modules:
    """The modules of a model.

    Attributes:
        routes: the modules in order, by the name of the route; a single route ``None`` without a router.
        default: the route where nothing names one.
        mappings: the routes of tasks that have another name.
    """

    routes: Mapping[str | None, Sequence[Module]]
    default: str | None = None
    mappings: Mapping[tuple[str | None, str | None], str] = field(default_factory=dict)

    def route(self, task: str | None) -> str | None:
        """The route of a task, such as ``query``, as sentence-transformers finds it for a text.

        Raises:
            InvalidArgument: the model has no such route, or without a router, there is no such task.
        """
        check_text(task, "task", optional=True)
        if None in self.routes:
            if task not in (None, *_TASKS):
                raise InvalidArgument(f"task must be {' or '.join(map(repr, _TASKS))}, or None, got {task!r}")
            return None
        for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
        if task in self.routes:
            return task
        if task is None and "text" in self.routes:
            return "text"
        if task is not None or self.default is None:
            names = ", ".join(map(repr, self.routes))
            raise InvalidArgument(f"The model has no route for task={task!r}. Pass task= one of {names}")
        return self.default

    def of(self, route: str | None) -> Sequence[Module]:
        """The modules of a route; ``None`` for the default one."""
        return self.routes[self.default if route is None else route]


def read(folder: Path) -> Modules:
    """The modules of a model; none without ``modules.json``.

    Raises:
        InvalidModel: a file is damaged, or a path leads out of the folder.
        UnsupportedModel: a module that isorun does not have.
    """
    path = inside(folder, FILE)
    if not path.is_file():
        return Modules({None: ()})
    listed = keys.read(path)
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_MODULES:
        raise InvalidModel(f"{path} must be a list of 1 to {_MAX_MODULES} objects")
    modules = []
    for entry in listed:
        if not isinstance(entry, dict) or "type" not in entry:
            raise InvalidModel(f"{path} must be a list of objects with a type")
        keys.check(entry, sentence_keys.MODULE, str(path))
        modules.append(_module(folder, path, entry["type"], entry.get("path", "")))
    routers = {module: _router(folder, module) for module in modules if module.kind in _ROUTERS}
    if not routers:
        return Modules({None: modules})
    first = next(iter(routers.values()))
    if any(router.routes.keys() != first.routes.keys() for router in routers.values()):
        raise UnsupportedModel(f"{path} has routers with different routes")
    routes = {}
    for name in first.routes:
        parts = [routers[module].routes[name] if module in routers else [module] for module in modules]
        routes[name] = [module for part in parts for module in part]
    return Modules(routes, first.default, first.mappings)


def _router(folder: Path, router: Module) -> Modules:
    paths = [inside(folder, f"{router.path}/{name}" if router.path else name) for name in ROUTER_FILES]
    path = next((path for path in paths if path.is_file()), paths[0])
    fields = keys.read_table(path, sentence_keys.ROUTER)
    types, structure, parameters = (fields.get(key) or {} for key in ("types", "structure", "parameters"))
    keys.check(parameters, sentence_keys.ROUTER_PARAMETERS, str(path))
    lists = all(isinstance(names, list) and names for names in structure.values())
    if not lists or not 0 < len(structure) <= _MAX_MODULES:
        raise InvalidModel(f"{path}: structure must have a list of modules for each route, got {keys.shown(structure)}")
    routes: dict[str | None, Sequence[Module]] = {}
    for route, names in structure.items():
        if unknown := [name for name in names if not isinstance(name, str) or name not in types]:
            raise InvalidModel(f"{path}: the route {route!r} names {unknown[0]!r}, which types does not have")
        inner = [f"{router.path}/{name}" if router.path else name for name in names]
        routes[route] = [_module(folder, path, types[name], place) for name, place in zip(names, inner, strict=True)]
        if any(module.kind in _ROUTERS for module in routes[route]):
            raise UnsupportedModel(f"{path}: a router in a router is not supported")
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(structure))
    mappings = {_task(key, path): route for key, route in (parameters.get("route_mappings") or {}).items()}
    if unknown := [route for route in (default, *mappings.values()) if route is not None and route not in routes]:
        raise InvalidModel(f"{path} names the route {unknown[0]!r}, which structure does not have")
    return Modules(routes, default, mappings)


def _module(folder: Path, file: Path, kind: str, path: str) -> Module:
    package, _, name = kind.rpartition(".")
    if name not in _KINDS or package.partition(".")[0] not in _PACKAGES:
        raise UnsupportedModel(f"{file} has a module of type {name} ({kind}). Supported: {', '.join(_KINDS)}")
    inside(folder, path)
    return Module(name, path)


def _task(key: str, path: Path) -> tuple[str | None, str | None]:
    """A key of ``route_mappings``: a tuple of a task and a modality, as Python writes it."""
    try:
        parsed: Any = ast.literal_eval(key) if len(key) < 200 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        parsed = None
    if not isinstance(parsed, tuple) or len(parsed) != 2:
        raise InvalidModel(f"{path}: a key of route_mappings must be a tuple of a task and a modality, got {key!r}")
    task, modality = parsed
    return (task, modality if isinstance(modality, str) or modality is None else repr(modality))
