"""Two specs as one, so that their cells are measured in the same rounds (``isorun matrix ab``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from isorun.errors import SpecError
from isorun_matrix.spec.backends import Entry
from isorun_matrix.spec.models import Model
from isorun_matrix.spec.spec import Selection, Spec

_ROUNDS = 12
_EACH = ("models", "backends", "environments", "shapes", "precisions", "threads", "device", "include", "exclude")


@dataclass(frozen=True)
class Pair:
    """A cell of both specs: its id there, and its ids in the combined spec."""

    id: str
    a: str
    b: str


def combine(a: Spec, b: Spec) -> tuple[Spec, list[Pair], list[str]]:
    """One spec with the cells that both have, these cells, and the ids of those that ``a`` alone has.

    The spec has 12 rounds where ``a`` does not set them.
    The labels of backends end in ``.a`` and ``.b``, and so do the names of models that differ.

    Raises:
        SpecError: the specs measure in different ways, or have no cell in common.
    """
    for key in Spec.model_fields:
        if key not in _EACH and getattr(a, key) != getattr(b, key):
            raise SpecError(f"Both specs must have the same {key}, got {getattr(a, key)!r} and {getattr(b, key)!r}")
    for spec in (a, b):
        if spec.is_divided:
            raise SpecError("`ab` runs on one machine. Remove `machines` from backends and models.")
    models = [
        {name: model.model_copy(update={"shapes": model.shapes or spec.shapes}) for name, model in spec.models.items()}
        for spec in (a, b)
    ]
    differing = {name for name in {*models[0], *models[1]} if models[0].get(name) != models[1].get(name)}
    sides = (f"{name}.{side}" for name in sorted(differing) for side in ("a", "b"))
    if taken := next((name for name in sides if name in {*models[0], *models[1]}), None):
        raise SpecError(f"A model is called {taken!r}, which is the name of a side here. Rename it.")
    for name in a.environments.keys() & b.environments.keys():
        if a.environments[name] != b.environments[name]:
            raise SpecError(f"Both specs declare the environment {name!r}, and differently. Rename one of them.")
    parts = [_part(a, "a", models[0], differing), _part(b, "b", models[1], differing)]
    ids = [dict(_ids(spec, part)) for spec, part in zip((a, b), parts, strict=True)]
    pairs = [Pair(name, ids[0][name], ids[1][name]) for name in ids[0] if name in ids[1]]
    if not pairs:
        raise SpecError(
            f"The specs have no cell in common. Cells are matched by model/shape/label/precision: got {min(ids[0])} "
            f"and {min(ids[1])}. Give backends the same label."
        )
    update = {
        "models": parts[0].models | parts[1].models,
        "backends": [*parts[0].backends, *parts[1].backends],
        "environments": a.environments | b.environments,
        "include": [_selection(name) for pair in pairs for name in (pair.a, pair.b)],
        "exclude": [],
        "load": [],
        "common_rounds": True,
        "rounds": a.rounds if "rounds" in a.model_fields_set else _ROUNDS,
    }
    return a.model_copy(update=update), pairs, [name for name in ids[0] if name not in ids[1]]


def changed(spec: Spec, environment: str | None, models: dict[str, Model]) -> Spec:
    """A spec whose backends run in another environment, and with other models under the same names."""
    backends = [
        entry if environment is None else entry.model_copy(update={"environment": environment})
        for entry in spec.backends
    ]
    return spec.model_copy(update={"backends": backends, "models": spec.models | models})


def in_one_environment(spec: Spec, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of a combined spec of which one side alone runs in an environment."""
    isolated = {variant.label for variant in spec.variants if variant.environment is not None}
    return [pair for pair in pairs if len({name.split("/")[2] in isolated for name in (pair.a, pair.b)}) > 1]


def _part(spec: Spec, side: str, models: Mapping[str, Model], differing: set[str]) -> Spec:
    """A spec with the names of its side."""
    return spec.model_copy(
        update={
            "models": {f"{name}.{side}" if name in differing else name: model for name, model in models.items()},
            "backends": [_entry(entry, spec, side) for entry in spec.backends],
        }
    )


def _entry(entry: Entry, spec: Spec, side: str) -> Entry:
    """A backend with its side in the label, and without the spec's defaults, which the other side may not have."""
    return entry.model_copy(
        update={
            "label": f"{entry.label}.{side}",
            "precisions": entry.precisions or spec.precisions,
            "threads": spec.threads if entry.threads is None else entry.threads,
            "device": entry.device or spec.device,
        }
    )


def _ids(spec: Spec, part: Spec) -> Iterator[tuple[str, str]]:
    """The ids of the cells of a spec, and those that they have in the combined one."""
    cells = set(spec.cell_ids())
    for own, new in zip(spec.cell_ids(selected=False), part.cell_ids(selected=False), strict=True):
        if own in cells:
            yield own, new


def _selection(name: str) -> Selection:
    model, shape, backend, precision = name.split("/")
    return Selection(model=model, shape=shape, backend=backend, precision=precision)
