"""The fastest precision that stays accurate, measured once and cached.

Each precision that a backend supports is compiled, compared with fp32 on requests held out of calibration, and, if it
is within the tolerance with a margin for unseen requests, timed, interleaved with the others. The result is cached for
this model, backend and version, threads, options and processor. :mod:`isorun.compilation.measuring` compares them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from isorun.compilation import accuracy, corpus, measuring
from isorun.compilation.compiled_model import CompiledModel
from isorun.compilation.compiler import Compiler
from isorun.compilation.measuring import BASE, Candidate, Judges, Pace
from isorun.compilation.options import AUTO, TOLERANCE
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import Backend
from isorun.system.cache import sha256, versioned
from isorun.system.hardware import cpu_name
from isorun.system.process_usage import return_free_memory
from isorun.system.progress import logged
from isorun.types import CompileConfig

_PACE = Pace(rounds=40, seconds=1.5, total=20.0, turn=1.5)

_logger = logging.getLogger(__name__)


def compile_fastest(
    compiler: Compiler, backend: Backend, config: CompileConfig
) -> tuple[CompiledModel, dict[str, Any]]:
    """Compile a model in the fastest precision that stays within a tolerance of fp32 on unseen requests.

    Args:
        compiler: the model, and options with the tolerance and the samples: int8 is calibrated on some of them and all
            precisions are judged on the others (:func:`isorun.compilation.corpus.split`). A held-out request must be
            :data:`isorun.compilation.accuracy.MARGIN` times as close as the tolerance.
        backend: a backend that supports fp32.
        config: from :meth:`Compiler.config`; its precision is ignored.

    Returns:
        The model in the chosen precision, and the candidates as plain data.

    Raises:
        BackendUnavailable: the backend does not support fp32.
        InvalidFeeds: the model does not accept the samples.
        UnsupportedModel: feeds for the model cannot be generated; or as :meth:`Compiler.compile` says.
    """
    supported = backend.capabilities.precisions
    if BASE not in supported:
        raise BackendUnavailable(
            backend.name,
            f"precision='auto' compares with fp32, which it does not support (supported: {', '.join(supported)})",
            "Choose a supported precision.",
        )
    candidates = [BASE, *(name for name in supported if name != BASE and name not in measuring.WIDER)]
    options, graphs = compiler.options, compiler.graphs
    tolerance = TOLERANCE if options.tolerance is None else options.tolerance
    required = accuracy.required_cosine(tolerance)
    request = {"asked": AUTO, "tolerance": tolerance, "required": required}
    calibrated_on, held_out = corpus.split(options.samples)
    compiled: dict[str, CompiledModel] = {}

    def compile_in(precision: str) -> CompiledModel:
        return compiler.compile(backend, replace(config, precision=precision), calibrated_on)

    if len(candidates) == 1:
        note = {**request, "chosen": BASE, "tried": [], "measured": "not: the backend supports no other precision"}
        return compile_in(BASE), note

    @logged("measured the precisions of %s", compiler.source.path)
    def measure(_: object) -> dict[str, Any]:
        _logger.info("precision='auto': measuring %s on %s, once for this model", ", ".join(candidates), backend.name)
        compiled[BASE] = compile_in(BASE)
        if calibrated_on is not None:
            corpus.as_feeds(graphs, calibrated_on)  # rejects invalid samples even if no candidate is calibrated
        try:
            kinds, origin = corpus.held_out(graphs, held_out)
            timed, shape = accuracy.timed(graphs.info)
        except InvalidFeeds as error:
            raise UnsupportedModel(f"precision='auto' cannot measure this model: {error}. Name a precision") from error
        tested = []
        for precision in candidates[1:]:
            try:
                compiled[precision] = compile_in(precision)
            except (BackendUnavailable, UnsupportedModel, BackendFailed, InvalidFeeds) as error:
                tested.append(Candidate(backend=backend.name, precision=precision, reason=str(error)))
        outputs = graphs.info.output_names
        runs = {(backend.name, name): partial(each.run, outputs) for name, each in compiled.items()}
        base = backend.name, BASE
        judges = Judges.by(runs[base], graphs.info, kinds, required)
        tested.append(Candidate(backend=backend.name, precision=BASE, cosine=1.0))
        tested += [judges.judge(key, run) for key, run in runs.items() if key != base]
        accurate = {(each.backend, each.precision) for each in tested if not each.reason}
        times, failed = measuring.times({key: runs[key] for key in runs if key in accurate}, [timed], _PACE)
        tested = [each.timed(times, failed) for each in tested]
        for candidate in tested:
            figures = f"cosine {candidate.cosine}, {candidate.milliseconds} ms"
            _logger.info("%s: %s", candidate.precision, candidate.reason or figures)
        requests = {kind: sum(corpus.requests(feeds) for feeds in batches) for kind, batches in kinds.items()}
        about = {"judged_on": origin, "requests": requests, "timed_at": shape}
        chosen = measuring.best(tested)
        if chosen is None:
            raise BackendFailed(failed[base])
        return {"chosen": chosen.precision, "tried": [asdict(candidate) for candidate in tested], **about}

    try:
        key = _key(compiler, backend, config, tolerance, candidates)
        entry = compiler.cache.get_or_make("tuning", key, measure, models=compiler.source.models)
        chosen = entry.meta["chosen"]
        model = compiled.pop(chosen) if chosen in compiled else compile_in(chosen)
    finally:
        if compiled:
            for other in compiled.values():
                other.close()
            return_free_memory()
    note = {**request, **entry.meta, "measured": "earlier" if entry.found else "now"}
    return model, note


def _key(
    compiler: Compiler, backend: Backend, config: CompileConfig, tolerance: float, candidates: Sequence[str]
) -> str:
    """A cache key of everything that a choice depends on."""
    options = compiler.options
    machine = (cpu_name(), config.device, config.threads)
    request = (options.padding, tolerance, sorted((key, repr(value)) for key, value in config.options.items()))
    judged_on = corpus.digest(compiler.graphs, options.samples)
    parts = (backend.name, backend.version(), *machine, *request, *candidates, judged_on)
    key = sha256(repr((compiler.source.fingerprint, *parts)).encode())[:40]
    return versioned(key, "lowering", "calibration", "tuning")
