"""Which backend runs a model: the one that is named, or the first of several that supports the request."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.compilation.compiled_model import CompiledModel
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import AUTO
from isorun.errors import (
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    InvalidArgument,
    InvalidType,
    UnsupportedModel,
)
from isorun.models import checkpoint
from isorun.plugin import listing, registry
from isorun.plugin.backend import Backend
from isorun.system.cleanup import closed_on_error
from isorun.types import CompileConfig, Provenance

if TYPE_CHECKING:
    from isorun.compilation.corpus import Samples
    from isorun.isolation.worker.backend import Worker

_UNFIT = (BackendNotFound, BackendUnavailable, UnsupportedModel, BackendFailed, InvalidArgument)

_logger = logging.getLogger("isorun")


class Resolved(NamedTuple):
    """A model compiled on the backend that was selected.

    Attributes:
        tuned: what ``precision="auto"`` measured; empty for a precision that was requested.
        skipped: the backends that were skipped, each with the reason.
        worker: where it runs; ``None`` for this process.
        compiler: compiles it again.
        samples: what int8 was calibrated on.
    """

    model: CompiledModel
    tuned: Mapping[str, Any]
    skipped: tuple[tuple[str, str], ...]
    worker: Worker | None
    compiler: Compiler
    samples: Samples | None

    @property
    def backend(self) -> Backend:
        """The backend that was selected."""
        return self.model.backend

    @property
    def config(self) -> CompileConfig:
        """What the model is compiled for."""
        return self.model.config

    def compile_again(self, threads: int) -> CompiledModel:
        """Compile the same model for another number of threads, as
        :meth:`isorun.compilation.compiler.Compiler.compile`."""
        config = replace(self.config, threads=threads)
        return self.compiler.compile(self.backend, config, self.samples)

    def close(self) -> None:
        """Release the model and the worker."""
        try:
            self.model.close()
        finally:
            if self.worker is not None:
                self.worker.close()

    def provenance(self) -> Provenance:
        """What runs, where, and how it was made: obtained from the runtime."""
        from importlib.metadata import version

        report, lowered = self.model.report(), self.model.lowered
        notes = {"graph": dict(lowered.notes), "precision": dict(self.tuned)}
        notes["options"] = dict(self.config.options)
        notes["omitted"] = dict(checkpoint.omitted(self.model.info.metadata.custom_metadata_map))
        if drawing := self.model.info.random:
            notes["random"] = {"drawn_by": drawing}
        if mixing := self.model.info.mixes_rows:
            notes["rows"] = {"independent": False, "mixed_by": mixing, "batches": "only if requested"}
        if failures := self.compiler.recompilations.count:
            notes["recompiled"] = {"after_failures": failures, "last": self.compiler.recompilations.reason}
        notes = {name: note for name, note in notes.items() if note}
        return Provenance(
            backend=self.backend.name,
            device=report.device,
            precision=report.precision,
            threads=self.config.threads,
            operators=report.operators,
            fused=self.model.info.fused,
            dialect=lowered.dialect,
            fingerprint=lowered.fingerprint,
            cache="found" if lowered.cached else "made",
            skipped=self.skipped,
            versions={"isorun": version("isorun"), **report.versions},
            environment={} if self.worker is None else self.worker.about(),
            details={**report.details, **notes},
        )


def resolve(compiler: Compiler, backend: str | Sequence[str]) -> Resolved:
    """Compile a model on the backend of a name, or on the first of several that supports the request.

    Args:
        backend: a name, names in order of preference, or ``"auto"``.

    Raises:
        BackendNotFound, BackendUnavailable, UnsupportedModel, BackendFailed: for a single name, why it cannot run the
            model; for several, BackendUnavailable with the reason of each.
        BackendNotFound: also for a list with a name that no backend has.
        InvalidArgument: an argument that no requested backend knows.
        EnvironmentNotFound, EnvironmentBroken: the environment does not exist, or its interpreter is gone.
    """
    options = compiler.options
    if drawing := compiler.graphs.info.random:
        _logger.warning(
            "%s draws random numbers, by the node %s: its results differ from run to run. If that is a dropout, export "
            "the model again after `model.eval()`",
            compiler.source.path,
            drawing,
        )
    if options.environment is None:
        return _resolve(compiler, backend, None)
    from isorun.isolation import environments
    from isorun.isolation.worker.backend import Worker

    worker = Worker(environments.get(options.environment), compiler.cache.root, options.timeout)
    with closed_on_error(worker):
        return _resolve(compiler, backend, worker)


def _resolve(compiler: Compiler, backend: str | Sequence[str], worker: Worker | None) -> Resolved:
    if isinstance(backend, str) and backend != AUTO:
        return _compile(compiler, backend, (backend,), (), worker)
    skipped: list[tuple[str, str]] = []
    if isinstance(backend, str):
        described = listing.candidates(compiler.cache) if worker is None else worker.candidates()
        candidates = [(description.name, description.problem) for description in described]
        if compiler.options.precision == AUTO and worker is None:
            chosen = _as_chosen(compiler, skipped)
            if chosen is not None:
                return chosen
    elif isinstance(backend, Sequence) and all(isinstance(name, str) for name in backend):
        candidates = [(name, "") for name in backend]
        _check_names(backend, worker)
    else:
        raise InvalidType(f"backend must be a name, a list of names or 'auto', got {backend!r}")
    if not candidates:
        raise InvalidArgument("backend is an empty list. Name at least one backend, or use 'auto'")
    errors: list[Exception] = []
    names = tuple(name for name, _ in candidates)
    for name, problem in candidates:
        try:
            if not problem:
                resolved = _compile(compiler, name, names, tuple(skipped), worker)
                if backend == AUTO and skipped:
                    _logger.info("backend='auto' skipped %s", "; ".join(map(": ".join, skipped)))
                return resolved
        except _UNFIT as error:
            errors.append(error)
            problem = _reason(error)
        skipped.append((name, problem))
        if backend != AUTO:
            _logger.warning("skipped backend %s: %s", name, problem)
    invalid = [error for error in errors if isinstance(error, InvalidArgument)]
    if invalid and len(invalid) == len(errors):
        raise invalid[0]
    reasons = "\n".join(f"  {name}: {reason}" for name, reason in skipped)
    raise BackendUnavailable(names, "none of them can run this model as requested", f"Fix one of these:\n{reasons}")


def _check_names(names: Sequence[str], worker: Worker | None) -> None:
    """Reject a list with a name that no backend has, before any of them is tried."""
    for name in names:
        if worker is None:
            if name.partition(":")[0] not in registry.names():
                raise BackendNotFound(name, registry.names())
        else:
            with suppress(BackendUnavailable):
                worker.get(name)


def _as_chosen(compiler: Compiler, skipped: list[tuple[str, str]]) -> Resolved | None:
    """The model as ``isorun choose`` chose; ``None`` if it did not, or if something has changed since."""
    from isorun.tuning import backend as best_backend

    remembered = best_backend.remembered(compiler, listing.candidates(compiler.cache))
    if remembered is None:
        return None
    chosen, samples = remembered
    try:
        backend = registry.get(chosen.backend)
        config = replace(compiler.config(backend), precision=chosen.precision)
        model = compiler.compile(backend, config, samples)
    except _UNFIT as error:
        _logger.warning("`isorun choose` chose %s in %s, which fails: %s", chosen.backend, chosen.precision, error)
        skipped.append((f"{chosen.backend} in {chosen.precision}", _reason(error)))
        return None
    resolved = Resolved(model, chosen.note(), chosen.skipped, None, compiler, samples)
    _log_opened(resolved, "as `isorun choose` chose")
    return resolved


def _compile(
    compiler: Compiler, name: str, requested: Sequence[str], skipped: tuple[tuple[str, str], ...], worker: Worker | None
) -> Resolved:
    start = time.perf_counter()
    backend = registry.get(name) if worker is None else worker.get(name)
    config = compiler.config(backend, requested)
    samples = compiler.options.samples
    if config.precision == AUTO:
        from isorun.compilation import corpus
        from isorun.tuning import precision

        model, tuned = precision.compile_fastest(compiler, backend, config)
        resolved = Resolved(model, tuned, skipped, worker, compiler, corpus.split(samples)[0])
    else:
        model = compiler.compile(backend, config, samples)
        resolved = Resolved(model, {}, skipped, worker, compiler, samples)
    _log_opened(resolved, f"{time.perf_counter() - start:.2f} s")
    return resolved


def _log_opened(resolved: Resolved, how: str) -> None:
    _logger.info(
        "opened %s on %s in %s, %s: %s; lowered to %s (%s in the cache)",
        resolved.compiler.source.path,
        resolved.backend.name,
        resolved.config.precision,
        how,
        ", ".join(f"{count} {kind}" for kind, count in resolved.model.info.fused.items()) or "nothing fused",
        resolved.model.lowered.dialect,
        "found" if resolved.model.lowered.cached else "made",
    )


def _reason(error: Exception) -> str:
    return f"{error.reason}. {error.remedy}" if isinstance(error, BackendUnavailable) else str(error)
