"""What a backend supports, and what a session asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

from isorun.types.options import Option

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8")
"""The precisions that a session can be opened in, if its backend supports them."""

DIALECTS = ("com.microsoft.cpu", "com.microsoft", "onnx", "primitive", "static", "fused")
"""The dialects of the fused graph (docs/dialects.md); ``fused`` is the fused graph itself."""

REPORTS = ("placement", "precision")
"""What :meth:`isorun.plugin.Executable.report` may prove."""


class Dialect(str):
    """The name of a backend's own variant of a dialect, with functions that replace some of the base's.

    Attributes:
        functions: the text of the functions (docs/dialects.md), such as that of a file beside the backend's module:
            ``Path(__file__).with_name("my-engine.onnxtxt").read_text(encoding="utf-8")``. All others are inherited.
        base: the dialect that they are inherited from.
    """

    functions: str
    base: str

    def __new__(cls, name: str, *, functions: str, base: str = "primitive") -> Self:
        dialect = super().__new__(cls, name)
        dialect.functions, dialect.base = functions, base
        return dialect

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, str]]:
        return (str(self),), self.as_dict()

    def as_dict(self) -> dict[str, str]:
        """The keywords of its construction."""
        return {"functions": self.functions, "base": self.base}


@dataclass(frozen=True, kw_only=True)
class StaticShapes:
    """What a backend whose executables have one shape each asks of isorun, which chooses the shapes
    (docs/writing-a-backend.md). The sizes are in ascending order.

    Attributes:
        batches: the numbers of rows that executables are compiled for, where rows do not depend on each other. More
            rows than the largest run in several parts.
        lengths: the lengths that executables are compiled for, where padding does not change results. Longer rows are
            rounded up to a multiple of the largest.
        max_batch: the maximum number of rows of an executable; ``None`` for no limit. It concerns models whose rows
            cannot be split.
        max_length: the maximum length of a row; ``None`` for no limit.
        executables: the maximum number of executables of a model at a time. The least recently used are closed.
        memory: the maximum number of bytes of a model's executables together; ``None`` for no limit. An executable
            counts as what its ``size()`` returns (:class:`isorun.plugin.SupportsSize`), or as its weights.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    max_batch: int | None = None
    max_length: int | None = None
    executables: int = 16
    memory: int | None = None


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
        devices: the devices that it runs on, the default first: some of :data:`isorun.types.devices.DEVICES`.
        unverified: those of them that its authors could not try.
        options: the keys of ``Session(options=...)``, each with an :class:`isorun.types.options.Option`, or a help
            text alone, which accepts any value.
        sets_threads: whether the number of threads of a run can be set; if not, ``Session(threads=...)`` is rejected.
        dynamic_shapes: whether symbolic dimensions may change between the runs of an executable. If not, and without
            ``static_shapes``, it gets models with fixed shapes only.
        thread_safe: whether several threads may call :meth:`Executable.run` of one executable at once, in shapes that
            it has not seen before too, and while another thread compiles or closes an executable; if not, the session
            serializes the calls of an executable. Bindings are used by one thread at a time in any case.
        usable_after_failure: whether an executable whose run has failed returns correct results afterwards. If not, the
            session serializes the calls of an executable, and compiles the model again after a failed run.
        checks_indices: whether a run fails if an index of a lookup (``Gather``, ``ScatterND`` and so on) is outside its
            table. If not, it gets graphs that check the indices that bounds of the inputs do not protect.
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
        deterministic: whether a row's outputs are the same bits in any batch, by one graph, with any padding, number of
            threads and repetition, on one machine: what ``Session(deterministic=True)`` requires.
        repeatable: whether the same feeds of one row give the same bits, with any number of threads and whatever ran
            before. ``Session(deterministic=True)`` runs rows one at a time on a backend that is no more than that.
        faults: where the table of what the runtime computes wrongly is, an :class:`isorun.types.faults.KnownFaults`:
            ``package.module:NAME``. The module is imported where graphs are prepared, so it must import without the
            runtime. Affected nodes are rewritten, or the model is refused.
        static_shapes: how isorun compiles for an engine whose executables have one shape each; ``None`` for others.
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
    usable_after_failure: bool = False
    checks_indices: bool = False
    deterministic: bool = False
    repeatable: bool = False
    faults: str = ""
    unverified: tuple[str, ...] = ()
    static_shapes: StaticShapes | None = None

    def __post_init__(self) -> None:
        if self.static_shapes is not None:
            object.__setattr__(self, "dynamic_shapes", True)
            object.__setattr__(self, "data_dependent_shapes", False)

    def tolerance(self, precision: str) -> str:
        """The precision whose limits of parity apply to results in a precision."""
        return self.tolerances.get(precision, precision)


@dataclass(frozen=True)
class CompileConfig:
    """A session's request to a backend, validated against its capabilities.

    Attributes:
        precision: one of ``Capabilities.precisions``.
        device: one of ``Capabilities.devices``, in canonical form (:func:`isorun.types.devices.canonical`).
        threads: the number of threads for a run; ``None`` unless ``Capabilities.sets_threads``.
        options: keys of ``Capabilities.options``: :meth:`isorun.plugin.backend.Backend.read_options` adds the defaults.
        cache_dir: the session's cache folder, for files that the backend reuses.
        accelerators: the names of the GPUs or NPUs that the device may be; empty for a processor.
    """

    precision: str = "fp32"
    device: str = "cpu"
    threads: int | None = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None
    accelerators: tuple[str, ...] = ()
