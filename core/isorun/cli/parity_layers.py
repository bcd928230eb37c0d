"""``isorun parity --layers``: the first fused operator of a backend that departs from the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from isorun.cli import console, models
from isorun.models.source import FILE, open_model
from isorun.parity import OutputParity, Parity
from isorun.system.cache import Cache

if TYPE_CHECKING:
    from isorun.graph.transforms.expose import Operator

SETTINGS: Mapping[str, Any] = {"padding": "keep", "cache_dir": False}
"""How sessions run a model with exposed operators. Nothing of it is worth keeping in the cache."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a backend departs from the reference first.

    Attributes:
        mask: the kind of mask with which it does.
        operator: the operator; ``None`` if only an output of the model departs, after the last of them.
        measured: the comparison of its value.
    """

    mask: str
    operator: Operator | None
    measured: OutputParity

    def __str__(self) -> str:
        if self.operator is None:
            where = f"output {self.measured.name}, after the last fused operator"
        elif self.operator.layer is None:
            where = f"{self.operator.operator} {self.operator.node}, before layer 0"
        else:
            where = f"layer {self.operator.layer}, {self.operator.operator} {self.operator.node}"
        return f"{where} (mask: {self.mask}): {'; '.join(self.measured.reasons)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        operator = {} if self.operator is None else asdict(self.operator)
        return {
            "layer": operator.get("layer"),
            "operator": operator.get("operator"),
            "node": operator.get("node"),
            "output": self.measured.name,
            "mask": self.mask,
            "reasons": list(self.measured.reasons),
        }


@contextmanager
def exposed(model: Path) -> Iterator[tuple[Path, list[Operator]]]:
    """A temporary copy of a model, fused, whose outputs are the values of its fused operators and its own outputs."""
    from isorun.graph import pipeline
    from isorun.graph.io import files
    from isorun.graph.transforms import expose

    with TemporaryDirectory(prefix="isorun-layers-") as folder:
        source, path = open_model(model, Cache()), Path(folder) / FILE
        with console.working(f"Fusing {model}"), files.reading(str(model), except_for=OSError):
            graph = pipeline.read(source.path).model
            operators = expose.expose(graph)
            files.write(graph, path, beside_above=0)
        models.copy_text_files(source.path, path)  # for the calibration of int8
        yield path, operators


def first_departure(by_mask: Mapping[str, Parity], operators: Sequence[Operator]) -> Departure | None:
    """The first operator whose value is outside the tolerance with any mask; ``None`` if there is none."""
    known = {operator.output: operator for operator in operators}
    failed = [
        (position, Departure(mask, known.get(measured.name), measured))
        for mask, parity in by_mask.items()
        for position, measured in enumerate(parity.outputs)
        if measured.reasons
    ]
    return min(failed, key=lambda failure: failure[0])[1] if failed else None


def show(departures: Mapping[str, Departure | None], operators: Sequence[Operator]) -> None:
    """Print one line for each backend."""
    print(f"Compared: the values of {len(operators)} fused operators, and the model's outputs")
    for name, departure in departures.items():
        print(f"{name}: {'no differences above the tolerance' if departure is None else f'differs at {departure}'}")
