"""Plain data that sessions, backends and tools exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from isorun.types.options import Option

Feeds = Mapping[str, Any]
"""Input name to array; ONNX sequences and optionals are lists and ``None``."""

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8")
"""The precisions that a session can be opened in, if its backend supports them."""

DEVICES = ("cpu", "gpu", "cuda", "npu")
"""The devices that backends run on."""

DIALECTS = ("com.microsoft", "onnx", "primitive", "fused")
"""The dialects of the fused graph (docs/backends.md); ``fused`` is the fused graph itself."""

REPORTS = ("placement", "precision")
"""What :meth:`isorun.plugin.Executable.report` may prove."""

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
    """An input or output of a model, in the terms of ``onnxruntime.NodeArg``.

    Attributes:
        name: the tensor's name.
        type: ONNX Runtime's name for its type, such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: a number for a fixed dimension, a name for a symbolic one, ``None`` for an unknown one; ``None`` instead
            of a tuple if the rank is unknown or the value is not a tensor.
        overridable: whether the model has a default value, so that a feed may be omitted.
        bounds: the minimum and maximum valid value (of a token id, by the rows of its table; of a mask, 0 and 1);
            ``None`` if any value is valid.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None
    overridable: bool = False
    bounds: tuple[int, int] | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype of a tensor's elements; ``None`` if NumPy lacks the type, or for other values."""
        scalar = _NUMPY_TYPES.get(self.type.removeprefix("tensor(").removesuffix(")"))
        return None if scalar is None else np.dtype(scalar)


class Dialect(str):
    """The name of a backend's own variant of a dialect, with functions that replace some of the base's.

    Attributes:
        functions: the text of the functions (docs/backends.md), such as that of a file beside the backend's module:
            ``Path(__file__).with_name("my-engine.onnxtxt").read_text()``. All others are inherited.
        base: the dialect that they are inherited from.
    """

    functions: str
    base: str

    def __new__(cls, name: str, *, functions: str, base: str = "primitive") -> Self:
        made = super().__new__(cls, name)
        made.functions, made.base = functions, base
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, str]]:
        return (str(self),), self.as_dict()

    def as_dict(self) -> dict[str, str]:
        """The keywords of its construction."""
        return {"functions": self.functions, "base": self.base}


@dataclass(frozen=True)
class Capabilities:
    """What a backend supports, readable without importing its runtime. The defaults are the minimum.

    Attributes:
        dialects: the dialects of the fused graph that it accepts, richest first: some of :data:`DIALECTS`, or a
            :class:`Dialect` of its own. ``fused`` is the fused graph itself, for a backend that reads or lowers it with
            :mod:`isorun.plugin.fused`.
        precisions: the precisions that it supports, given the hardware: some of :data:`PRECISIONS`.
        typed: those of them that the graph must be converted to, since the runtime computes in the graph's types; the
            others are settings of the runtime.
        refused: unsupported precisions, each with what the runtime would do instead.
        devices: the devices that it runs on, the default first.
        options: the keys of ``Session(options=...)``, each with an :class:`isorun.types.options.Option`, or a help
            text alone, which accepts any value.
        sets_threads: whether the number of threads of a run can be set; if not, ``Session(threads=...)`` is rejected.
        dynamic_shapes: whether symbolic dimensions may change between runs.
        thread_safe: whether several threads may call :meth:`Executable.run` of one executable at once, in shapes that
            it has not seen before too, and while another thread compiles or closes an executable; if not, the session
            serializes the calls of an executable. Bindings are used by one thread at a time in any case.
        runs_on_caller: whether concurrent runs of one executable with ``threads=1`` proceed in parallel, each on its
            caller's thread, so that a server needs one such executable rather than one for each run at once.
        package: the import package of the runtime, without which the backend is unavailable.
        requirement: the pip requirement to install.
        reports: what :meth:`Executable.report` can prove: ``"placement"`` (operators by device or provider),
            ``"precision"`` (the precision of the kernels).
        device_arrays: whether feeds and outputs may be in GPU memory (:mod:`isorun.plugin.device_arrays`); requires
            :meth:`Executable.run_on_device`.
        priority: where ``backend="auto"`` places it, higher first; ``None`` for never. isorun's own have 20 to 30 on
            GPUs and up to 10 on CPUs.
        data_dependent_shapes: whether it runs operators whose output shape depends on values (``NonZero``, ``Range`` of
            a computed number). If not, it does not get graphs whose padding is removed.
        fixed_threads: the number of threads that every run uses, for a runtime that cannot change it; a session that
            requests another number is rejected.
        tolerances: for a runtime that approximates (a polynomial for ``Erf``, say): precision to the precision whose
            limits of parity apply, such as ``{"fp32": "bf16"}``. Other precisions have their own limits.
    """

    dialects: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)
    typed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)
    options: Mapping[str, Option | str] = field(default_factory=dict)
    sets_threads: bool = False
    dynamic_shapes: bool = False
    thread_safe: bool = False
    runs_on_caller: bool = False
    package: str | None = None
    requirement: str | None = None
    reports: tuple[str, ...] = ()
    device_arrays: bool = False
    _: KW_ONLY
    priority: int | None = 0
    data_dependent_shapes: bool = True
    fixed_threads: int | None = None
    tolerances: Mapping[str, str] = field(default_factory=dict)

    def tolerance(self, precision: str) -> str:
        """The precision whose limits of parity apply to results in a precision."""
        return self.tolerances.get(precision, precision)


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used on this machine; if not, the reason and the remedy."""

    ok: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """A problem that ``isorun doctor`` reports.

    Attributes:
        subject: the affected package, backend, environment or folder.
        severity: ``"error"`` if something does not work as documented; ``"warning"`` if it may not.
        what: the problem.
        why: its cause and consequences.
        command: a shell command that fixes it.
    """

    subject: str
    severity: Literal["error", "warning"]
    what: str
    why: str
    command: str


class ModelMetadata(NamedTuple):
    """A model's metadata, with the fields and defaults of ``onnxruntime.ModelMetadata``."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 2**63 - 1
    custom_metadata_map: dict[str, str] = {}  # noqa: RUF012  # never written to


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model.

    Attributes:
        inputs, outputs: in the model's order.
        opset: the version of the standard operators.
        fused: the number of fused operators by name; empty for a model that is not in the fused form.
        limits: symbolic dimensions that must agree between inputs and must not be 0, each with its maximum (the rows of
            a position table) or ``None``.
        metadata: what the model says about itself.
        quantized: whether its activations were already 8-bit.
        mask: the mask input (batch, sequence), 0 at padding; ``None`` if there is none or it is unknown.
        token_outputs: the token-level outputs (batch, sequence, ...); ``None`` if unknown.
        keeps_padding: why padding cannot be removed; empty if it can. In that case, padding to the right of a row with
            at least one real token does not change the results of that row.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    fused: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    quantized: bool = False
    mask: str | None = None
    token_outputs: tuple[str, ...] | None = None
    keeps_padding: str = "the model has not been analysed"

    @property
    def output_names(self) -> list[str]:
        """The names of all outputs."""
        return [spec.name for spec in self.outputs]

    @property
    def required(self) -> list[TensorSpec]:
        """The inputs without a default value, which must be fed."""
        return [spec for spec in self.inputs if not spec.overridable]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelInfo:
        """The inverse of ``dataclasses.asdict``, also after a round trip through JSON."""

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
                **fields,
                "inputs": specs(fields["inputs"]),
                "outputs": specs(fields["outputs"]),
                "metadata": ModelMetadata(*fields["metadata"]),
                "token_outputs": None if fields["token_outputs"] is None else tuple(fields["token_outputs"]),
            }
        )


@dataclass(frozen=True)
class LoweredModel:
    """A model file in one of a backend's dialects, and its description.

    Attributes:
        path: the ONNX file, owned by the cache or the user: do not write to it.
        dialect: one of the backend's dialects; ``onnx`` for a model without fused operators.
        fingerprint: SHA-256 (hexadecimal) of the original model with its weights, and of the requested outputs unless
            all are.
        info: the description of the lowered model.
        cached: whether it was in the cache.
        notes: changes to the graph besides lowering, as plain data for provenance.
    """

    path: Path
    dialect: str
    fingerprint: str
    info: ModelInfo
    cached: bool
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileConfig:
    """A session's request to a backend, validated against its capabilities.

    Attributes:
        precision: one of ``Capabilities.precisions``.
        device: one of ``Capabilities.devices``.
        threads: the number of threads for a run; ``None`` unless ``Capabilities.sets_threads``.
        options: keys of ``Capabilities.options``: :meth:`isorun.plugin.backend.Backend.read_options` adds the defaults.
        cache_dir: the session's cache folder, for files that the backend reuses.
    """

    precision: str = "fp32"
    device: str = "cpu"
    threads: int | None = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None


@dataclass(frozen=True)
class RuntimeReport:
    """What a runtime reports after compiling a model; nothing in it is assumed.

    Attributes:
        device: the hardware's name, from the runtime or the system.
        precision: the precision of the matrix products, as the runtime reports it.
        operators: the number of nodes by provider or device, and by operator.
        versions: package versions.
        details: other reported data.
    """

    device: str
    precision: str
    operators: Mapping[str, Mapping[str, int]]
    versions: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """What runs, where, and how it was prepared.

    Attributes:
        backend, device, precision: what runs, as the runtime reports it.
        threads: the number of threads for a run; ``None`` if the backend does not set it.
        operators: the number of nodes by provider or device, and by operator.
        fused: the fused operators of the graph before lowering.
        dialect: the dialect that the graph was lowered to.
        fingerprint: SHA-256 of the original model, and of the requested outputs unless all are.
        cache: whether the lowered model was ``"found"`` in the cache or ``"made"``.
        passed_over: the skipped backends that precede this one, each with the reason.
        versions: package versions, including isorun's.
        environment: the isolated environment: its name and its versions of Python and NumPy; empty for this process.
        details: other data that the runtime reports.
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
        """Plain dictionaries and lists, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        nodes = {device: sum(counts.values()) for device, counts in self.operators.items()}
        lines = [
            ("backend", f"{self.backend} on {self.device}, {threads_in_words(self.threads)}"),
            ("precision", self.precision),
            ("nodes", ", ".join(f"{count} on {device}" for device, count in nodes.items())),
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
    """Format ``Provenance.threads``."""
    if threads is None:
        return "threads not set"
    return f"{threads} thread{'' if threads == 1 else 's'}"
