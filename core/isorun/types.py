"""The values that sessions, backends and tools hand to one another: plain data, without behaviour of any backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

Feeds = Mapping[str, Any]
"""Input name to array; ONNX sequences and optionals are lists and ``None``."""

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8")
"""The precisions that a session can be opened in, if its backend supports them."""

DEVICES = ("cpu", "gpu", "cuda", "npu")
"""The devices that backends run on."""

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "float16": np.float16,
    "float": np.float32,
    "double": np.float64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "complex64": np.complex64,
    "complex128": np.complex128,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model, in the vocabulary of ``onnxruntime.NodeArg``.

    Attributes:
        name: the tensor's name.
        type: ONNX Runtime's name for its type, such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: a number for a fixed dimension, a name for a symbolic one, ``None`` for an unknown one;
            ``None`` as a whole where the rank is unknown or the value is no tensor.
        overridable: whether the model has a value of its own for it, so that a feed may be left out.
        bounds: the least and the greatest value that the model has a meaning for (a token id indexes a
            table of that many rows, a mask holds 0 and 1); ``None`` where any value will do.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None
    overridable: bool = False
    bounds: tuple[int, int] | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype of a tensor's elements; ``None`` where NumPy has no such type, or it is no tensor."""
        scalar = _NUMPY_TYPES.get(self.type.removeprefix("tensor(").removesuffix(")"))
        return None if scalar is None else np.dtype(scalar)


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do, as data that is read without importing its runtime.

    The defaults promise the least: a plugin states what it adds.

    Attributes:
        dialects: the dialects of the fused graph that it reads, richest first
            (``com.microsoft``, ``onnx``, ``primitive``).
        precisions: what it can compute in, on hardware that has it: ``fp32``, ``fp64``, ``bf16``, ``fp16``.
        typed: those of them that the graph itself has to be written in, since the runtime computes in the types
            that it is given; any other is a setting of the runtime's.
        refused: precisions that one might ask of it in vain, each with what the runtime would do instead.
        devices: the devices that it runs on.
        options: the keys that ``Session(options=...)`` may hold, each with what it means.
        sets_threads: whether the number of threads of a run can be set; where it cannot, ``Session(threads=...)``
            is refused.
        dynamic_shapes: whether symbolic dimensions may change from run to run.
        thread_safe: whether one executable may be run from several threads at once; where it may not,
            the session takes turns.
        package: the import package of the runtime, whose absence makes the backend unavailable.
        requirement: what to install for it, as given to pip.
        reports: what :meth:`Executable.report` can prove: ``"placement"`` (operators by device or
            provider), ``"precision"`` (the precision that kernels were built for).
        device_arrays: whether feeds and outputs may stay in a GPU's memory (:mod:`isorun.plugin.device_arrays`): it
            then implements :meth:`Executable.run_on_device`.
    """

    dialects: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)
    typed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)
    options: Mapping[str, str] = field(default_factory=dict)
    sets_threads: bool = False
    dynamic_shapes: bool = False
    thread_safe: bool = False
    package: str | None = None
    requirement: str | None = None
    reports: tuple[str, ...] = ()
    device_arrays: bool = False


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; if not, why, and what to do about it."""

    ok: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong here, as ``isorun doctor`` lists it.

    Attributes:
        subject: what it is about: a package, a backend, an environment, a folder.
        severity: ``"error"`` where something does not work, or not as it says; ``"warning"`` where it may not.
        what: what was found.
        why: where that comes from, and what follows.
        command: what mends it, for a shell.
    """

    subject: str
    severity: Literal["error", "warning"]
    what: str
    why: str
    command: str


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model without reading it again.

    Attributes:
        inputs, outputs: in the model's order.
        opset: the version of ONNX's own operators.
        fused: fused operators by name, with how often each is called; empty for a model that is not in
            isorun's form.
        limits: symbolic dimensions that must agree between inputs and must not be empty, each with the
            most that it may be (the rows of a position table) or ``None``.
        metadata: the model's own metadata properties.
        producer, graph_name: the tool that wrote it, and what that called the graph.
        quantized: whether it came with activations in 8 bits.
        mask: the input that says which tokens are real, (batch, sequence), 0 at padding; ``None`` where no input
            does, or none is known to.
        token_outputs: the outputs that have a value for each token, (batch, sequence, ...); ``None`` where that is not
            known.
        keeps_padding: why padding cannot be removed; empty where it can. Where it can, padding to the right of a row
            with at least one real token changes nothing for that row.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    fused: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    graph_name: str = ""
    quantized: bool = False
    mask: str | None = None
    token_outputs: tuple[str, ...] | None = None
    keeps_padding: str = "the model has not been analysed"

    @property
    def required(self) -> list[TensorSpec]:
        """The inputs that must be fed: those for which the model has no value of its own."""
        return [spec for spec in self.inputs if not spec.overridable]

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> ModelInfo:
        """What ``dataclasses.asdict`` made of one, and JSON of that."""

        def specs(items: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(
                    **{
                        **item,
                        "shape": None if item["shape"] is None else tuple(item["shape"]),
                        "bounds": None if item["bounds"] is None else tuple(item["bounds"]),
                    }
                )
                for item in items
            )

        return cls(
            **{
                **described,
                "inputs": specs(described["inputs"]),
                "outputs": specs(described["outputs"]),
                "token_outputs": None if described["token_outputs"] is None else tuple(described["token_outputs"]),
            }
        )


class ModelMetadata(NamedTuple):
    """What a model says of itself, in the shape of ``onnxruntime.ModelMetadata``."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class LoweredModel:
    """A model that a backend can read: a file in one dialect, and what is known about it.

    Attributes:
        path: the ONNX file. It belongs to the cache or to the user: read it, never write to it.
        dialect: one of the backend's dialects; ``onnx`` for a model that came without fused operators.
        fingerprint: SHA-256 over the model as it was given, weights included, and over the outputs that are wanted,
            where not all are (hexadecimal).
        info: the lowered model's inputs, outputs and so on.
        cached: whether it was found rather than made.
        notes: what was done to the graph besides lowering it, as plain data for provenance.
    """

    path: Path
    dialect: str
    fingerprint: str
    info: ModelInfo
    cached: bool
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileConfig:
    """What a session asks of a backend, checked against its capabilities beforehand.

    Attributes:
        precision: what to compute in, one of ``Capabilities.precisions``.
        device: one of ``Capabilities.devices``.
        threads: how many threads one run may use; ``None`` unless ``Capabilities.sets_threads``.
        options: keys of ``Capabilities.options``.
        cache_dir: the session's cache folder, for what a backend makes and wants to find again.
    """

    precision: str = "fp32"
    device: str = "cpu"
    threads: int | None = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None


@dataclass(frozen=True)
class RuntimeReport:
    """What a runtime says that it did: asked of it after compiling, never assumed.

    Attributes:
        device: the hardware's name, as the runtime or the system gives it.
        precision: the precision of the matrix products, by the runtime's own account.
        operators: provider or device to operators and how many nodes of each it took.
        versions: packages and their versions.
        details: what else the runtime reports.
    """

    device: str
    precision: str
    operators: Mapping[str, Mapping[str, int]]
    versions: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """What ran, where, and how it came about.

    Attributes:
        backend, device, precision: what runs, as the runtime reports it.
        threads: how many threads a run may use; ``None`` where the backend has no say in it.
        operators: provider or device to operators and how many nodes of each it took.
        fused: the fused operators of the graph before lowering.
        dialect: what the graph was lowered to.
        fingerprint: SHA-256 of the model as given, and of the outputs that are wanted, where not all are.
        cache: ``"found"`` or ``"made"``: the lowered model.
        passed_over: backends that were preferred to this one, each with the reason against it.
        versions: packages and their versions, isorun's own included.
        environment: the isolated environment that it runs in: its name, and the versions of Python and NumPy there;
            empty for this process.
        details: what else the runtime reports.
    """

    backend: str
    device: str
    precision: str
    threads: int | None
    operators: Mapping[str, Mapping[str, int]]
    fused: Mapping[str, int]
    dialect: str
    fingerprint: str
    cache: str
    passed_over: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries and lists, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        nodes = {place: sum(counts.values()) for place, counts in self.operators.items()}
        lines = [
            ("backend", f"{self.backend} on {self.device}, {threads_in_words(self.threads)}"),
            ("precision", self.precision),
            ("nodes", ", ".join(f"{count} on {place}" for place, count in nodes.items())),
            ("fused", ", ".join(f"{count} {name}" for name, count in self.fused.items()) or "none"),
            ("lowered", f"to {self.dialect} ({self.cache} in the cache)"),
            ("model", self.fingerprint),
            ("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())),
        ]
        if self.environment:
            python, numpy = self.environment["python"], self.environment["numpy"]
            lines.append(("environment", f"{self.environment['name']}: Python {python}, NumPy {numpy}"))
        lines += [("skipped", f"{name}: {reason}") for name, reason in self.passed_over]
        return "\n".join(f"{label:<13}{value}" for label, value in lines)


def threads_in_words(threads: int | None) -> str:
    """``Provenance.threads`` for people."""
    if threads is None:
        return "threads not set"
    return f"{threads} thread{'' if threads == 1 else 's'}"
