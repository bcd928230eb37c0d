"""The exports in ``tests/fixtures``, what to feed them, and what they answer untouched."""

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator

from archives import FOLDER, unpack
from isorun.graph import model_info, pipeline
from isorun.graph.io import files
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import lower
from isorun.plugin import registry
from isorun.types import CompileConfig, LoweredModel

TOLERANCE = 1e-5
"""The greatest difference between an export and its fused form, fp32, outputs of about 1."""
MODERN_TOLERANCE = 2e-5
"""The same for the encoders after BERT, of 1 + |x|: their hidden states are not all normalized."""

MODERN_CHECKPOINTS = ("modernbert", "eurobert", "nomicbert", "gte", "jina-v3", "embeddinggemma", "qwen3")
"""The encoders after BERT that have checkpoints."""

Feeds = dict[str, np.ndarray]


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """What each export is, by its label."""
    return json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))


@cache
def modern() -> dict[str, dict[str, Any]]:
    """The exports of the encoders after BERT, by their labels."""
    return json.loads((FOLDER / "modern.json").read_text(encoding="utf-8"))


def entry(label: str) -> dict[str, Any]:
    """What an export of either kind is."""
    return manifest()[label] if label in manifest() else modern()[label]


@cache
def archive(name: str) -> dict[str, bytes]:
    """What an archive of exports holds, by label."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
        contents = {}
        for entry in packed.getmembers():
            content = packed.extractfile(entry)
            assert content is not None
            contents[entry.name.removesuffix(".onnx")] = content.read()
        return contents


def content(label: str) -> bytes:
    """An export, as its exporter wrote it."""
    return archive(entry(label)["archive"])[label]


def proto(label: str) -> onnx.ModelProto:
    return onnx.load_from_string(content(label))


def model(label: str) -> ir.Model:
    return ir.serde.deserialize_model(proto(label))


@cache
def fusion(label: str) -> tuple[bytes, FusionReport]:
    """An export in the fused form, which many tests read, and what was fused."""
    fused = model(label)
    report = pipeline.fuse(fused)
    return ir.serde.serialize_model(fused).SerializeToString(), report


def fused(label: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.load_from_string(fusion(label)[0]))


def checkpoint(name: str, folder: Path) -> Path:
    """Put a checkpoint below a folder: ``<architecture>`` or ``<architecture>-<head>``, the weights of its exports."""
    families = {"-".join(filter(None, (export["architecture"], export["head"]))) for export in modern().values()}
    return unpack("checkpoints-modern" if name in families else "checkpoints", folder, name)


def given(label: str, length: int = 12, rows: int = 5) -> Feeds:
    """What to feed an export; of the rows of :func:`feeds`, one with a number of its own takes the last."""
    dtype = np.int32 if entry(label)["exporter"] == "tf2onnx" else np.int64
    inputs = feeds(entry(label)["inputs"], length)
    own = entry(label).get("rows")
    chosen = {name: array[-own:] if own else array[:rows] for name, array in inputs.items()}
    return {name: array.astype(dtype) if array.dtype.kind == "i" else array for name, array in chosen.items()}


def feeds(names: list[str], length: int = 12, seed: int = 0) -> Feeds:
    """Five rows: no padding, right, left, holes, a fully masked row. Positions are in any order."""
    random = np.random.default_rng(seed)
    ids = random.integers(5, 100, (5, length))
    mask = np.ones_like(ids)
    mask[1, length // 2 :] = 0
    mask[2, : length // 3] = 0
    mask[3, 1::2] = 0
    mask[4] = 0
    types = random.integers(0, 2, ids.shape)
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    if "position_ids" in names:
        values["position_ids"] = random.integers(0, 60, ids.shape)
    if "bbox" in names:
        values["bbox"] = np.sort(random.integers(0, 40, (*ids.shape, 4)))
    if "pixel_values" in names:
        values["pixel_values"] = random.normal(size=(5, 3, 16, 16)).astype(np.float32)
    return {name: values[name] for name in names}


def run(
    model: bytes | Path | ir.Model | onnx.ModelProto,
    fed: Mapping[str, np.ndarray],
    names: Sequence[str] | None = None,
    *,
    optimized: bool = True,
) -> list[np.ndarray]:
    """What plain ONNX Runtime answers, all outputs or those of some names, by its own optimizers or node by node."""
    if isinstance(model, ir.Model):
        model = ir.serde.serialize_model(model)
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    session = (_session if isinstance(model, bytes) else _session.__wrapped__)(model, optimized)
    return list(session.run(names, dict(fed)))


@lru_cache(maxsize=4)  # tests run a model on several feeds in turn, and its untouched form
def _session(model: bytes | Path, optimized: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # starting a pool of threads takes longer than such a run
    options.log_severity_level = 3  # it warns of initializers that nothing reads
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_lowered(
    backend: str, dialect: str, model: ir.Model, fed: Feeds, path: Path, precision: str = "fp32"
) -> list[np.ndarray]:
    """What a backend answers to a model in the fused form, lowered and written to a file."""
    info = model_info.describe(model)
    files.write(lower.lower(model, dialect), path)
    executable = registry.get(backend).compile(
        LoweredModel(path, dialect, "", info, False), CompileConfig(threads=1, precision=precision)
    )
    try:
        return executable.run(None, fed)
    finally:
        executable.close()


def targets() -> list[tuple[str, str]]:
    """Every backend that comes with isorun and runs here, with each dialect that it reads."""
    return [
        (backend, dialect)
        for backend in ("ort-cpu", "openvino", "reference")
        for dialect in registry.get(backend).capabilities.dialects
    ]


@cache
def answers(label: str) -> list[np.ndarray]:
    """What an export answers untouched, by ONNX's reference if ONNX Runtime refuses it or runs it wrongly."""
    if entry(label).get("answers") == "reference":
        with np.errstate(all="ignore"):  # masks are logarithms of zero
            return list(ReferenceEvaluator(proto(label)).run(None, given(label)))
    return run(content(label), given(label))


def agree(label: str, got: list[np.ndarray]) -> bool:
    """Whether these are an export's answers to :func:`given`.

    TensorFlow's models lower masked scores by 10,000, which rounds those of a row without any key to thousandths:
    that row is compared loosely.
    """
    expected = answers(label)
    if label in modern():
        return all(
            wanted.shape == answer.shape
            and bool((np.abs(wanted - answer) < MODERN_TOLERANCE * (1 + np.abs(wanted))).all())
            for wanted, answer in zip(expected, got, strict=True)
        )
    if manifest()[label]["exporter"] != "tf2onnx":
        return difference(expected, got) < TOLERANCE
    without_last = difference([output[:4] for output in expected], [output[:4] for output in got])
    return without_last < TOLERANCE and difference(expected, got) < 0.01


def difference(expected: list[np.ndarray], got: list[np.ndarray]) -> float:
    """The greatest difference, where the expected is a number. What should be one and is not counts as infinite."""
    assert [output.shape for output in expected] == [output.shape for output in got]
    most = 0.0
    for wanted, answer in zip(expected, got, strict=True):
        numbers = np.isfinite(wanted)
        if not np.isfinite(answer[numbers]).all():
            return np.inf
        most = max(most, float(np.abs(wanted - answer)[numbers].max(initial=0.0)))
    return most


def digest(model: ir.Model) -> str:
    """A name for what a graph computes and how, whatever its values and nodes are called and in whatever order."""
    known: dict[ir.Value, bytes] = {}

    def of(*parts: object) -> bytes:
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(part if isinstance(part, bytes) else repr(part).encode())
            hashed.update(b"|")
        return hashed.digest()

    for value in model.graph.inputs:
        known[value] = of("input", value.name)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            array = value.const_value.numpy()
            known[value] = of("constant", array.dtype.str, array.shape, array.tobytes())
    for node in model.graph:
        if node.op_type == "Identity" and node.inputs[0] is not None:
            known[node.outputs[0]] = known[node.inputs[0]]
            continue
        attributes = sorted(
            (
                name,
                attribute.value.numpy().tobytes()
                if isinstance(attribute.value, ir.TensorProtocol)
                else attribute.value,
            )
            for name, attribute in node.attributes.items()
        )
        inputs = [b"" if operand is None else known[operand] for operand in node.inputs]
        for index, value in enumerate(node.outputs):
            known[value] = of(node.domain, node.op_type, attributes, index, *inputs)
    return of(*((value.name, known[value]) for value in model.graph.outputs)).hex()
