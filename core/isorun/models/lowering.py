"""What backends compile: a model's fused graph, lowered to a dialect, in a precision, with or without padding.

A graph is read and fused the first time that a model is opened. After that the cache has all that a session needs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.errors import UnsupportedModel
from isorun.models.source import ModelSource, check_unchanged, open_model
from isorun.system import portable
from isorun.system.cache import Cache, Entry, is_private, sha256, versioned
from isorun.system.progress import logged
from isorun.types import Dialect, LoweredModel, ModelInfo
from isorun.types.faults import Fault

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun.graph.pipeline import Job, Target

_STAGE = "lowering"
_BUILT = ("built", "presets")  # kinds of entries with models whose weights can be shared
OWN_TYPES = ""
"""In the place of a precision: the graph keeps its types."""
_ROUNDED_WEIGHTS = frozenset(
    (
        *("DequantizeLinear", "com.microsoft.DequantizeLinear", "com.microsoft.MatMulNBits"),
        *("com.microsoft.MatMulBnb4", "com.microsoft.GatherBlockQuantized"),
    )
)
_PLAIN = "onnx"  # the dialect of a model without fused operators: backends get it as given


@dataclass(frozen=True, slots=True)
class Quantized:
    """The 8-bit weights and scales of a model's dense layers, from :mod:`isorun.compilation.calibration`.

    Attributes:
        key: identifies them.
        folder: what :func:`isorun.graph.transforms.precision.int8.load` reads.
        note: how they were made, as plain data for provenance.
    """

    key: str
    folder: Path
    note: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is cached of a model.

    Attributes:
        info: of its fused form, if it is an encoder.
        as_given: whether a runtime can read the model's own file.
        unprotected: whether bounds of the inputs leave any index unprotected.
        beside: the external weight files, as the model names them.
        changed: whether it was changed on reading, since not every runtime reads its file.
        operators: of the model as given (:func:`isorun.graph.transforms.work_around.operators`); ``None`` if unknown.
        halves: whether it has weights in 16 bits (:func:`isorun.graph.transforms.precision.whole.has_halves`).
    """

    info: ModelInfo
    as_given: bool
    unprotected: bool
    beside: Sequence[str]
    changed: bool
    operators: Sequence[str] | None
    halves: bool


class ModelGraphs:
    """The graphs of one model, made when needed and cached.

    The fused graph stays in memory from its making until a lowered graph is written. From then on its weights are
    mapped from that file, so that graphs made later are of the same model even if its own file has been replaced.

    Args:
        source: the model.
        cache: where lowered models are kept.
        fused: whether to fuse it.
        narrow: as for :class:`isorun.graph.pipeline.Target`.
    """

    def __init__(self, source: ModelSource, cache: Cache, *, fused: bool = True, narrow: bool = True) -> None:
        self.source = source
        self.cache = cache
        self._fuses, self._narrows = fused, narrow
        self._fused: ir.Model | None = None
        # Runs of several threads may each need another graph of the model.
        self._lock = portable.lock_of(self, "_lock", threading.RLock)
        self._mapped = False  # whether the fused graph's weights are in the cache, rather than in the model's files

        entry = cache.get_or_make("models", versioned(self.form("files"), _STAGE), self._inspect, models=source.models)
        self._known = _Known(**{**entry.meta, "info": ModelInfo.from_dict(entry.meta["info"])})
        self._operators: dict[Path, Sequence[str]] = {}  # of lowered files
        self.private: bool = source.private or is_private(source.path.parent / name for name in self._known.beside)
        """Whether what is made from the model is for its owner only."""
        self.found: bool = entry.found
        """Whether the cache had the model's description."""

    @property
    def info(self) -> ModelInfo:
        """The model's inputs, outputs and so on, in its fused form if it is an encoder."""
        return self._known.info

    @property
    def as_given(self) -> LoweredModel:
        """The model's own file. It has all its outputs, whichever a session computes."""
        return LoweredModel(self.source.path, _PLAIN, self.source.fingerprint, replace(self.info, fused={}), self.found)

    @property
    def quantized(self) -> bool:
        """Whether ``int8`` runs the model as it was given: its activations are quantized, or its weights alone, for
        which a runtime may round activations. Models with such weights are not fused."""
        return self.info.quantized or not _ROUNDED_WEIGHTS.isdisjoint(self._known.operators or ())

    def unfused(self) -> ModelGraphs:
        """The graphs of the same model without fusion. Their masks may have any value."""
        return ModelGraphs(self.source, self.cache, fused=False)

    def lower(
        self,
        dialects: tuple[str, ...],
        *,
        packed: bool = False,
        precision: str = OWN_TYPES,
        quantized: Quantized | None = None,
        checks: bool = False,
        faults: Sequence[Fault] = (),
    ) -> LoweredModel:
        """The model in the first of a backend's dialects that can express it.

        A model that is not an encoder is returned as given, or converted to the precision, with the dialect ``onnx``;
        so is an encoder of another exporter that no dialect can express.

        Args:
            dialects: the backend's, in order of preference.
            packed: remove padding (:mod:`isorun.graph.transforms.padding_removal`).
            precision: what to write the graph in (:mod:`isorun.graph.transforms.precision`).
            quantized: what ``int8`` needs, except for a model that was quantized when it was given.
            checks: check the indices that bounds of the inputs do not protect, in the graph.
            faults: what the runtime computes wrongly: such nodes are rewritten.

        Raises:
            UnsupportedModel: the runtime computes a node wrongly that has no equivalent; padding cannot be removed; the
                graph cannot be converted to the precision; or the model was given in the fused form and no dialect can
                express it.
            InvalidModel: the model cannot be read, or has changed since it was opened.
        """
        with self._lock:
            lowered = self._in_dialect(dialects, packed, precision, quantized, checks)
            return self._worked_around(lowered, [fault for fault in faults if fault.applies is not None])

    def _in_dialect(
        self, dialects: tuple[str, ...], packed: bool, precision: str, quantized: Quantized | None, checks: bool
    ) -> LoweredModel:
        info, source = self.info, self.source
        if (precision == "int8" and self.quantized) or (precision == "fp32" and not self._known.halves):
            precision = OWN_TYPES
        if packed and info.keeps_padding:
            raise UnsupportedModel(info.keeps_padding)
        checks = checks and self._known.unprotected
        untouched = not packed and precision == OWN_TYPES and source.outputs is None and not checks
        as_given = self.as_given
        if not info.fused:
            # OpenVINO rejects weights that are links out of the model's folder, as in the Hugging Face hub's cache.
            linked = any((source.path.parent / location).is_symlink() for location in self._known.beside)
            if not untouched or linked or self._known.changed:
                return self._lowered(None, packed, precision, quantized, checks)
            self.release()
            return as_given
        refusals = []
        if not self._fuses:  # the variants of plugins expect masks of 0 and 1
            dialects = tuple(getattr(dialect, "base", dialect) for dialect in dialects)
        for dialect in dialects:
            try:
                return self._lowered(dialect, packed, precision, quantized, checks)
            except UnsupportedModel as error:
                refusals.append(error)
        if untouched and self._known.as_given:
            self.release()
            return as_given
        raise UnsupportedModel(
            "; ".join(dict.fromkeys(map(str, refusals))) or "The backend reads no dialect of the fused graph",
            [name for refusal in refusals for name in refusal.operators],
        )

    def _worked_around(self, lowered: LoweredModel, faults: Sequence[Fault]) -> LoweredModel:
        """The model without the nodes that a runtime computes wrongly; the same model if it has none."""
        suspects = {fault.operator for fault in faults}
        present = self._operators.get(lowered.path, self._known.operators)
        if not suspects or (present is not None and suspects.isdisjoint(present)):
            return lowered

        origin = lowered.path.name if lowered.path in self._operators else "as given"
        name = f"{self.form('faults', origin, _digest(faults))}.onnx"

        def make(folder: Path) -> dict[str, Any]:
            from isorun.graph.io import files, shared
            from isorun.graph.transforms import work_around

            with files.reading(str(self.source.path)):
                graph = files.read(lowered.path)
                try:
                    rewritten = work_around.apply(graph, faults)
                except UnsupportedModel as error:
                    return {"refused": str(error), "operators": error.operators, "rewritten": []}
            if rewritten:
                shared.write(graph, folder / name)
            if lowered.path == self.source.path:
                check_unchanged(self.source, self.cache)
            return {"refused": "", "rewritten": rewritten}

        entry = self.entry(name, make)
        if entry.meta["refused"]:
            raise UnsupportedModel(entry.meta["refused"], entry.meta["operators"])
        if not entry.meta["rewritten"]:
            return lowered
        notes = {**lowered.notes, "worked_around": entry.meta["rewritten"]}
        return replace(lowered, path=entry.folder / name, cached=entry.found, notes=notes)

    def write(self, target: Target, path: Path) -> tuple[ir.Model, Job]:
        """Make the graph of a target and write it.

        Returns:
            The graph, and what its passes noted.

        Raises:
            UnsupportedModel, InvalidModel: as :meth:`lower`.
        """
        from isorun.graph import pipeline
        from isorun.graph.io import files, shared

        with self._lock, logged("lowered %s", self.source.path):
            with files.reading(str(self.source.path)):
                graph = self._graph()
                job = pipeline.transform(graph, target)
            graph.metadata_props.clear()  # sessions answer from the model as given; runtimes need no tokenizer
            shared.write(graph, path)
            if not self._mapped:
                check_unchanged(self.source, self.cache)  # weights beside the model were read only now
        return graph, job

    def release(self) -> None:
        """Free the memory of the fused graph. It is made again from the model's file if it is needed."""
        with self._lock:
            self._fused = None

    def _graph(self) -> ir.Model:
        """A copy of the fused graph, or of the graph as given if the model is not an encoder."""
        if self._fused is None:
            self._read()
        assert self._fused is not None
        return self._fused.clone()

    def _read(self) -> bool:
        """Read and fuse the model; whether it was fused here."""
        from isorun.graph import pipeline

        with logged("read and fused %s", self.source.path):
            graph, fused_here, _ = pipeline.read(
                self.source.path, self.source.outputs, fused=self._fuses, narrow=self._narrows
            )
        self._fused, self._mapped = graph, False
        return fused_here

    def _inspect(self, _: Path) -> dict[str, Any]:
        from isorun.graph import model_info
        from isorun.graph.analysis import index_bounds
        from isorun.graph.io import files
        from isorun.graph.transforms import work_around
        from isorun.graph.transforms.precision import whole

        path = self.source.path
        with files.reading(str(path)):
            fused_here = self._read()
            assert self._fused is not None
            info = model_info.describe(self._fused, any_mask=not self._fuses)
            unprotected = bool(index_bounds.unprotected(self._fused.graph))
        check_unchanged(self.source, self.cache)
        changed = files.is_changed(self._fused)
        beside = files.external_files(files.read_proto(path))
        return {
            "info": asdict(info),
            "as_given": fused_here and not changed,
            "unprotected": unprotected,
            "beside": beside,
            "changed": changed,
            # An encoder seldom runs as given: it is searched then.
            "operators": None if info.fused else work_around.operators(self._fused),
            "halves": whole.has_halves(self._fused),
        }

    def _lowered(
        self, dialect: str | None, packed: bool, precision: str, quantized: Quantized | None, checks: bool
    ) -> LoweredModel:
        source = self.source

        def make(folder: Path) -> dict[str, Any]:
            from isorun.graph.pipeline import Target
            from isorun.graph.transforms import work_around
            from isorun.graph.transforms.precision import int8

            notes: dict[str, Any] = {} if source.outputs is None else {"outputs": list(source.outputs)}
            table = int8.load(quantized.folder) if quantized else None
            converted = precision if precision != OWN_TYPES and not quantized else None
            target = Target(packed=packed, precision=converted, table=table, dialect=dialect, checks=checks)
            graph, job = self.write(target, folder / name)
            if quantized:
                notes["int8"] = dict(quantized.note)
            return {"notes": notes | job.notes, "operators": work_around.operators(graph)}

        own = [sha256(repr(dialect.as_dict()).encode())] if isinstance(dialect, Dialect) else []
        parts = [
            dialect or _PLAIN,
            *own,
            *(["packed"] if packed else []),
            *(["checks"] if checks else []),
            *([precision] if precision != OWN_TYPES else []),
        ]
        name = f"{self.form(*parts, *([quantized.key] if quantized else []))}.onnx"
        entry = self.entry(name, make)
        path = entry.folder / name
        self._operators[path] = entry.meta["operators"]
        self._map_weights(path)
        return LoweredModel(path, dialect or _PLAIN, source.fingerprint, self.info, entry.found, entry.meta["notes"])

    def _map_weights(self, lowered: Path) -> None:
        """Map the fused graph's weights from a lowered model, or free the graph if they are not all there (int8)."""
        if self._fused is None or self._mapped:
            return
        from isorun.graph.io import files

        written = {name: value.const_value for name, value in files.read(lowered).graph.initializers.items()}
        for name, value in self._fused.graph.initializers.items():
            tensor, same = value.const_value, written.get(name)
            if tensor is None or tensor.nbytes <= files.INLINE_LIMIT:
                continue
            if same is None or (same.dtype, same.shape) != (tensor.dtype, tensor.shape):
                self._fused = None
                return
            value.const_value = same
        self._mapped = True

    def entry(self, name: str, make: Callable[[Path], dict[str, Any]]) -> Entry:
        """The entry of all lowered forms of the model, which share their weights, with one of them made if missing.

        A model that was built in the cache shares its weights, too: they are all in its entry.
        """
        source, (kind, key) = self.source, ("lowered", versioned(self.source.content[:40], _STAGE))
        folder = source.path.parent
        if folder.parent.parent == self.cache.root and folder.parent.name in _BUILT:
            kind, key = folder.parent.name, folder.name
        return self.cache.get_or_make(kind, key, make, models=source.models, private=self.private, part=name)

    def form(self, *parts: str) -> str:
        """A digest of the model, and of what else decides the result."""
        how = ("unfused",) if not self._fuses else () if self._narrows else ("whole",)
        return sha256("|".join((versioned("", _STAGE), self.source.fingerprint, *how, *parts)).encode())[:40]


def info_of(model: Path, cache: Cache) -> ModelInfo:
    """What an ONNX file or a checkpoint is: :attr:`ModelGraphs.info`.

    Raises:
        InvalidModel: it cannot be read.
    """
    return ModelGraphs(open_model(model, cache), cache).info


def _digest(faults: Sequence[Fault]) -> str:
    """SHA-256 of the code of a table, which may change without a release."""
    functions = [function for fault in faults for function in (fault.applies, fault.rewrite) if function is not None]
    modules = sorted({str(sys.modules[function.__module__].__file__) for function in functions})
    return sha256(b"".join(Path(path).read_bytes() for path in modules))
