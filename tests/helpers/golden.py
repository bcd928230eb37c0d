"""Digests of what each stage of :mod:`isorun.system.cache.stages` makes of small inputs, and the recorded ones.

They are equal on every machine: values and nodes have no names, and floats are rounded coarsely. After raising a
version, run this file as a program: it records the new digests.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import exports
import small_bert
from isorun.compilation import corpus
from isorun.graph import model_info, pipeline
from isorun.graph.io import files
from isorun.graph.ops import lower
from isorun.graph.transforms.precision import int8
from isorun.graph.transforms.precision.ranges import ActivationStats, Recipe
from isorun.models import checkpoint, presets
from isorun.system.cache import stages

RECORD = Path(__file__).parents[1] / "fixtures" / "golden.json"
EXPORTS = ("bert-dynamo18-sdpa", "roberta-torchscript17-eager", "deberta-v3-dynamo18-eager", "modernbert-dynamo23-sdpa")
CHECKPOINTS = ("bert-sequence", "deberta-v3", "t5", "jina-v2", "modernbert", "embeddinggemma", "nomicbert")
_SMALL = 16  # elements of a constant whose floats all count
_SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 40}


def digest(*parts: object) -> str:
    """A digest of plain data, arrays and graphs."""
    return hashlib.sha256("|".join(map(_text, parts)).encode()).hexdigest()[:16]


def _text(part: object) -> str:
    match part:
        case ir.Model():
            functions = sorted((str(key), _graph(body, {})) for key, body in part.functions.items())
            return digest(sorted(part.graph.opset_imports.items()), functions, _graph(part.graph, {}))
        case ir.TensorProtocol():
            return _text(part.numpy())
        case np.ndarray() | np.generic():
            return _array(np.asarray(part))
        case float():
            return f"{part:.3g}"
        case dict():
            return digest(*(item for name in sorted(part) for item in (name, part[name])))
        case list() | tuple():
            return digest(len(part), *part)
        case _:
            return str(part)


def _array(array: np.ndarray) -> str:
    shape = f"{array.dtype}{array.shape}"
    if array.dtype.kind in "bOSU" or array.dtype in (np.int32, np.int64):
        return digest(shape, *array.ravel().tolist())
    numbers = array.ravel().astype(np.float64)
    if numbers.size <= _SMALL:
        return digest(shape, *numbers.tolist())
    finite = np.where(np.isfinite(numbers), numbers, 1e3)
    return digest(shape, float(np.mean((finite + 2 * np.abs(finite)) * np.linspace(1, 2, finite.size))))


def _graph(graph: ir.Graph | ir.Function, known: dict[ir.Value | None, str]) -> str:
    """A digest of what a graph computes, whatever its values are called and in whatever order its nodes are."""
    known = {**known, None: ""}
    for value in graph.inputs:
        known[value] = digest("input", _declared(value))
    for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
        known[value] = _text(value.const_value)
    for node in graph:
        attributes = {
            name: _graph(attribute.as_graph(), known) if attribute.type == ir.AttributeType.GRAPH else attribute.value
            for name, attribute in node.attributes.items()
            if attribute.type != ir.AttributeType.GRAPHS
        }
        computed = digest(node.domain, node.op_type, attributes, [known[value] for value in node.inputs])
        known.update((value, digest(computed, index)) for index, value in enumerate(node.outputs))
    return digest(*(part for value in graph.outputs for part in (_declared(value), known[value])))


def _declared(value: ir.Value) -> str:
    dtype = value.dtype.name if value.dtype else ""
    return digest(value.name, dtype, *(str(size) for size in value.shape or ()))


def _lowered() -> Iterator[tuple[str, str]]:
    for label in EXPORTS:
        fused = exports.model(label)
        pipeline.fuse(fused)
        yield label, digest(asdict(model_info.describe(fused)), fused)
        yield f"{label} packed", digest(_target(fused, packed=True, dialect="com.microsoft"))
        if label == EXPORTS[0]:
            for dialect in sorted(lower.DIALECTS):
                yield f"{label} {dialect}", digest(_target(fused, dialect=dialect))
            yield f"{label} fp16", digest(_target(fused, precision="fp16", dialect="onnx", checks=True))
    fused = small_bert.build(**_SIZES)
    yield "int8", digest(_target(fused, table=_table(fused), dialect="onnx", packed=True))


def _target(fused: ir.Model, **target: Any) -> ir.Model:
    model = fused.clone()
    pipeline.transform(model, pipeline.Target(**target))
    return model


def _table(model: ir.Model) -> dict[str, int8.QuantizedDense]:
    table = {}
    for _, _, weight in int8.layers(model):
        assert weight.name
        assert weight.shape is not None
        rows, columns = weight.shape.numpy()
        integers = (np.arange(rows * columns) % 251 - 125).astype(np.int8).reshape(rows, columns)
        outliers = np.array([1], np.int64)
        scales, factors = np.full(columns, 0.25, np.float32), np.full(rows, 0.5, np.float32)
        left = np.ones((1, columns), np.float32)
        table[weight.name] = int8.QuantizedDense(
            integers, scales, factors, np.float32(0.125), np.uint8(128), outliers, left
        )
    return table


def _calibrated() -> Iterator[tuple[str, str]]:
    grid = np.arange(48 * 40).reshape(48, 40)  # integers: versions of NumPy differ in the remainder of large floats
    for name, outlier in (("even", 1), ("outliers", 60)):
        seen = ActivationStats(8)
        for batch in range(8):
            activations = (grid * 7919 + batch * 31) % 101 / 101 - 0.4
            activations[:, 3] *= outlier
            seen.add(activations.astype(np.float32), batch)
        weight = (grid[:40] * 104729 % 97 / 97 - 0.5).astype(np.float32)
        for recipe in (Recipe(), Recipe(reduce_range=True), Recipe(smooth=False)):
            dense = seen.quantize(weight, recipe)
            yield f"{name} {recipe.reduce_range} {recipe.smooth}", digest(asdict(dense))


def _built() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        for name in CHECKPOINTS:
            output = Path(folder, f"{name}.onnx")
            checkpoint.build(exports.checkpoint(name, Path(folder)), output)
            model = files.read(output)
            yield name, digest(model, dict(model.metadata_props))


def _presets() -> Iterator[tuple[str, str]]:
    for name in presets.NAMES:
        yield name, digest(presets.sizes(name))
    yield "weights", digest(presets.graph({"vocab_size": 50, **_SIZES}, 0, "small"))


def _tuned() -> Iterator[tuple[str, str]]:
    yield "texts", digest(corpus.texts(held_out=True))
    yield "split", digest(*corpus.split([f"text {number}" for number in range(120)]))


MAKERS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "builders": _built,
    "presets": _presets,
    "lowering": _lowered,
    "calibration": _calibrated,
    "tuning": _tuned,
}
"""What makes the digests of a stage, by name."""


def record() -> dict[str, Any]:
    """The recorded version and digests of each stage."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def complaint(stage: str, recorded: dict[str, Any], digests: dict[str, str]) -> str:
    """What to do about a stage whose digests or version differ from the recorded ones; empty if they are equal."""
    version = stages.VERSIONS[stage]
    before = recorded.get("digests", {})
    changed = [name for name, known in before.items() if digests.get(name, known) != known]
    if changed and recorded["version"] == version:
        return (
            f"The output of the stage {stage!r} has changed ({', '.join(changed)}), so that its cache entries are "
            f"outdated. Raise VERSIONS[{stage!r}] in core/isorun/system/cache/stages.py to {version + 1}, then record "
            "the digests with `python tests/helpers/golden.py`"
        )
    if {"version": version, "digests": digests} != recorded:
        return f"Record the digests of the stage {stage!r} with `python tests/helpers/golden.py`"
    return ""


def _main() -> None:
    recorded = record()
    for stage, make in MAKERS.items():
        digests = dict(make())
        if (what := complaint(stage, recorded.get(stage, {}), digests)).startswith("The output"):
            raise SystemExit(what)
        recorded[stage] = {"version": stages.VERSIONS[stage], "digests": digests}
    RECORD.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    _main()
