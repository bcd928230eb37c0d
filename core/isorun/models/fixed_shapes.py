"""Lowered models whose dimensions are all fixed, for backends that compile one shape at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from isorun.models.lowering import ModelGraphs
from isorun.models.source import check_unchanged
from isorun.types import LoweredModel, TensorSpec


class FixedModel(NamedTuple):
    """A model of one shape.

    Attributes:
        model: its file and description, without symbolic dimensions among its inputs.
        weight_bytes: the size of its weights.
    """

    model: LoweredModel
    weight_bytes: int


def fix(graphs: ModelGraphs, lowered: LoweredModel, shapes: Mapping[str, tuple[int, ...]]) -> FixedModel:
    """A lowered model for one shape of each input. Its file is small: it shares the weights of all lowered forms.

    Args:
        graphs: the model's.
        lowered: made by them.
        shapes: by input; inputs with a default value may be missing.

    Raises:
        InvalidModel: the model cannot be read, or has changed since it was opened.
    """
    own = lowered.path == graphs.source.path
    origin = "as given" if own else lowered.path.name
    name = f"{graphs.form('shapes', origin, repr(sorted(shapes.items())))}.onnx"

    def make(folder: Path) -> dict[str, Any]:
        from isorun.graph.io import files, shared
        from isorun.graph.transforms import fix_shapes

        with files.reading(str(graphs.source.path)):
            graph = files.read(lowered.path)
            outputs = fix_shapes.apply(graph, shapes)
            shared.write(graph, folder / name)
        if own:
            check_unchanged(graphs.source, graphs.cache)
        return {"outputs": outputs, "weight_bytes": files.weight_bytes(graph)}

    entry = graphs.entry(name, make)
    info = lowered.info
    sizes = {
        symbol: size
        for spec in info.inputs
        for symbol, size in zip(spec.shape or (), shapes.get(spec.name, ()), strict=False)
        if isinstance(symbol, str)
    }
    outputs = [_fixed_output(spec, entry.meta["outputs"].get(spec.name), sizes) for spec in info.outputs]
    inputs = [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in info.inputs]
    fixed = replace(info, inputs=tuple(inputs), outputs=tuple(outputs), limits={})
    model = replace(lowered, path=entry.folder / name, cached=entry.found, info=fixed)
    return FixedModel(model, entry.meta["weight_bytes"])


def _fixed_output(spec: TensorSpec, inferred: list[int] | None, sizes: Mapping[str, int]) -> TensorSpec:
    """An output with the sizes that were inferred, or else with those of the inputs' symbols."""
    if inferred is not None:
        return replace(spec, shape=tuple(inferred))
    if spec.shape is None:
        return spec
    return replace(spec, shape=tuple(sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape))
