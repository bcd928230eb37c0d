"""The fastest precision that stays accurate, measured once and cached.

Each precision that a backend supports is compiled, compared with fp32 on requests held out of calibration, and, if it
is within the tolerance with a margin for unseen requests, timed, interleaved with the others.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from isorun.compilation import corpus
from isorun.compilation.compiled_model import CompiledModel
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import AUTO
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import Backend
from isorun.system.process_usage import return_free_memory
from isorun.system.progress import logged
from isorun.tuning import accuracy, candidates
from isorun.tuning.accuracy import ReferenceOutputs, Required, Run
from isorun.tuning.candidates import BASE, Key
from isorun.tuning.record import KIND, Subject
from isorun.tuning.timing import TimingBudget
from isorun.types import CompileConfig

_BUDGET = TimingBudget(rounds=40, seconds=5.0)

_logger = logging.getLogger(__name__)


def compile_fastest(
    compiler: Compiler, backend: Backend, config: CompileConfig
) -> tuple[CompiledModel, dict[str, Any]]:
    """Compile a model in the fastest precision that stays within a tolerance of fp32 on unseen requests.

    Args:
        compiler: the model, and options with the tolerance and the samples: int8 is calibrated on some of them and all
            precisions are judged on the others (:func:`isorun.compilation.corpus.split`). A held-out request must be
            :data:`isorun.tuning.accuracy.MARGIN` times as close as the tolerance.
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
    precisions = [BASE, *(name for name in supported if name != BASE and name not in candidates.WIDER)]
    options, graphs = compiler.options, compiler.graphs
    required = Required.of(options, graphs)
    request = {"requested": AUTO, **required.as_dict()}
    calibrated_on, held_out = corpus.split(options.samples)
    compiled: dict[str, CompiledModel] = {}

    def compile_in(precision: str) -> CompiledModel:
        return compiler.compile(backend, replace(config, precision=precision), calibrated_on)

    if len(precisions) == 1:
        note = {**request, "chosen": BASE, "candidates": [], "measured": "not: the backend supports no other precision"}
        return compile_in(BASE), note

    @logged("measured the precisions of %s", compiler.source.path)
    def measure(_: object) -> dict[str, Any]:
        _logger.info("precision='auto': measuring %s on %s, once for this model", ", ".join(precisions), backend.name)
        compiled[BASE] = compile_in(BASE)
        if calibrated_on is not None:
            corpus.as_feeds(graphs, calibrated_on)  # rejects invalid samples even if no candidate is calibrated
        try:
            kinds, origin = corpus.held_out(graphs, held_out)
            timed, shape = accuracy.timed(graphs.info)
        except InvalidFeeds as error:
            raise UnsupportedModel(f"precision='auto' cannot measure this model: {error}. Name a precision") from error

        def open_run(key: Key) -> Run:
            _, precision = key
            if precision not in compiled:
                compiled[precision] = compile_in(precision)
            return partial(compiled[precision].run, graphs.info.output_names)

        keys = [(backend.name, precision) for precision in precisions]
        reference = ReferenceOutputs.of(open_run(keys[0]), graphs.info, kinds, required)
        tested = candidates.measure(keys, open_run, reference, [timed], _BUDGET, _logger.info)
        for candidate in tested:
            kept = f", neighbours {candidate.neighbours['value']}" if candidate.neighbours else ""
            figures = f"cosine {candidate.cosine}{kept}, {candidate.milliseconds} ms"
            _logger.info("%s: %s", candidate.precision, candidate.reason or figures)
        best = candidates.best(tested)
        if best is None:
            why = tested[0].reason.rstrip(". \n")
            raise BackendFailed(f"precision='auto' cannot measure this model: {why}. Name a precision")
        return {
            "chosen": best.precision,
            "candidates": [asdict(candidate) for candidate in tested],
            "judged_on": origin,
            "requests": {kind: sum(map(corpus.requests, batches)) for kind, batches in kinds.items()},
            "timed_at": shape,
        }

    try:
        details = (*required.as_dict().values(), *precisions, corpus.digest(graphs, options.samples))
        key = Subject(compiler, backend, config).key("precision", *details)
        entry = compiler.cache.get_or_make(KIND, key, measure, models=compiler.source.models)
        chosen = entry.meta["chosen"]
        model = compiled.pop(chosen) if chosen in compiled else compile_in(chosen)
    finally:
        if compiled:
            for candidate in compiled.values():
                candidate.close()
            return_free_memory()
    note = {**request, **entry.meta, "measured": "earlier" if entry.found else "now"}
    return model, note
