"""The fastest precision that stays accurate, measured once and cached.

Each precision that a backend supports is compiled, compared with fp32 on requests held out of calibration, and, if it
is within the tolerance with a margin for unseen requests, timed, interleaved with the others. The result is cached for
this model, backend and version, threads, options and processor. :mod:`isorun.compilation.accuracy` compares them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from isorun.compilation import accuracy, corpus
from isorun.compilation.compiler import Compiled, Compiler
from isorun.compilation.options import AUTO, TOLERANCE
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import sha256
from isorun.system.hardware import cpu_name
from isorun.system.progress import logged
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo

_BASE = "fp32"
_WIDER = ("fp64",)  # than the base: not candidates
_GAIN = 1.05  # the minimum speed-up over fp32 that is not noise
_ROUNDS, _SECONDS, _MAX_SECONDS = 40, 1.5, 20.0  # of timing; seconds per precision, and for all of them at most

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A precision that was tested.

    Attributes:
        precision: its name.
        milliseconds: the median time of a run; ``None`` if it was not timed.
        cosine: the minimum cosine of any held-out request's outputs to fp32's; ``None`` if there is none.
        worst: the kind of that request.
        cosines: the minimum cosine of each kind.
        reason: why it cannot be chosen; empty if it can.
    """

    precision: str
    milliseconds: float | None = None
    cosine: float | None = None
    worst: str | None = None
    cosines: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""


def compile_fastest(
    compiler: Compiler, backend: Backend, config: CompileConfig
) -> tuple[LoweredModel, CompileConfig, Executable, dict[str, Any]]:
    """Compile a model in the fastest precision that stays within a tolerance of fp32 on unseen requests.

    Args:
        compiler: the model, and options with the tolerance and the samples: int8 is calibrated on some of them and all
            precisions are judged on the others (:func:`isorun.compilation.corpus.split`). A held-out request must be
            :data:`isorun.compilation.accuracy.MARGIN` times as close as the tolerance.
        backend: a backend that supports fp32.
        config: from :meth:`Compiler.config`; its precision is ignored.

    Returns:
        The model, the config with the chosen precision, the executable, and the candidates as plain data.

    Raises:
        BackendUnavailable: the backend does not support fp32.
        InvalidFeeds: the model does not accept the samples.
        UnsupportedModel: feeds for the model cannot be generated; or as :meth:`Compiler.compile` says.
    """
    supported = backend.capabilities.precisions
    if _BASE not in supported:
        raise BackendUnavailable(
            backend.name,
            f"precision='auto' compares with fp32, which it does not support (supported: {', '.join(supported)})",
            "Choose a supported precision.",
        )
    candidates = [_BASE, *(name for name in supported if name != _BASE and name not in _WIDER)]
    options, graphs = compiler.options, compiler.graphs
    tolerance = TOLERANCE if options.tolerance is None else options.tolerance
    required = accuracy.required_cosine(tolerance)
    request = {"asked": AUTO, "tolerance": tolerance, "required": required}
    calibrated_on, held_out = corpus.split(options.samples)
    compiled: dict[str, Compiled] = {}

    def compile_in(precision: str) -> Compiled:
        return compiler.compile(backend, replace(config, precision=precision), calibrated_on)

    if len(candidates) == 1:
        model, executable = compile_in(_BASE)
        note = {**request, "chosen": _BASE, "tried": [], "measured": "not: the backend supports no other precision"}
        return model, replace(config, precision=_BASE), executable, note

    @logged("measured the precisions of %s", compiler.source.path)
    def measure(_: object) -> dict[str, Any]:
        _logger.info("precision='auto': measuring %s on %s, once for this model", ", ".join(candidates), backend.name)
        compiled[_BASE] = compile_in(_BASE)
        if calibrated_on is not None:
            corpus.as_feeds(graphs, calibrated_on)  # rejects invalid samples even if no candidate is calibrated
        try:
            kinds, origin = corpus.held_out(graphs, held_out)
            timed, shape = accuracy.timed(graphs.info)
        except InvalidFeeds as error:
            raise UnsupportedModel(f"precision='auto' cannot measure this model. {error}. Name a precision") from error
        tested = []
        for precision in candidates[1:]:
            try:
                compiled[precision] = compile_in(precision)
            except (BackendUnavailable, UnsupportedModel, BackendFailed, InvalidFeeds) as error:
                tested.append(Candidate(precision, reason=str(error)))
        tested += _compare(compiled, graphs.info, kinds, required)
        accurate = [candidate.precision for candidate in tested if not candidate.reason]
        times = (
            _time({name: compiled[name].executable for name in accurate}, _outputs(graphs.info), timed)
            if len(accurate) > 1
            else {}
        )
        tested = [replace(candidate, milliseconds=times.get(candidate.precision)) for candidate in tested]
        for candidate in tested:
            figures = f"cosine {candidate.cosine}, {candidate.milliseconds} ms"
            _logger.info("%s: %s", candidate.precision, candidate.reason or figures)
        requests = {kind: sum(corpus.requests(feeds) for feeds in batches) for kind, batches in kinds.items()}
        about = {"judged_on": origin, "requests": requests, "timed_at": shape}
        return {"chosen": _fastest(tested), "tried": [asdict(candidate) for candidate in tested], **about}

    try:
        key = _key(compiler, backend, config, tolerance, candidates)
        entry = compiler.cache.get_or_make("tuning", key, measure, models=compiler.source.models)
        chosen = entry.meta["chosen"]
        model, executable = compiled.pop(chosen) if chosen in compiled else compile_in(chosen)
    finally:
        for other in compiled.values():
            other.executable.close()
    note = {**request, **entry.meta, "measured": "earlier" if entry.found else "now"}
    return model, replace(config, precision=chosen), executable, note


def _key(
    compiler: Compiler, backend: Backend, config: CompileConfig, tolerance: float, candidates: Sequence[str]
) -> str:
    """A cache key of everything that a choice depends on."""
    options = compiler.options
    machine = (cpu_name(), config.device, config.threads)
    request = (options.padding, tolerance, sorted((key, repr(value)) for key, value in config.options.items()))
    judged_on = corpus.digest(compiler.graphs, options.samples)
    parts = (backend.name, backend.version(), *machine, *request, *candidates, judged_on)
    return sha256(repr((corpus.code_digest(), compiler.source.fingerprint, *parts)).encode())[:40]


def _compare(
    compiled: Mapping[str, Compiled], info: ModelInfo, kinds: Mapping[str, Sequence[Feeds]], required: float
) -> list[Candidate]:
    """The compiled precisions, each with its accuracy."""
    base, outputs = compiled[_BASE].executable, _outputs(info)
    expected = {kind: [base.run(outputs, feeds) for feeds in batches] for kind, batches in kinds.items()}
    tested = [Candidate(_BASE, cosine=1.0)]
    for precision, (_, executable) in compiled.items():
        if precision == _BASE:
            continue
        run = partial(executable.run, outputs)
        judged = accuracy.judge(info, run, kinds, expected, accuracy.limits(required))
        worst, cosine = judged.worst
        tested.append(Candidate(precision, None, cosine, worst, judged.cosines, judged.reason))
    return tested


def _time(executables: Mapping[str, Executable], outputs: Sequence[str], feeds: Feeds) -> dict[str, float]:
    """The median time of a run in milliseconds, interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in executables}
    for executable in executables.values():
        executable.run(outputs, feeds)
    begin, rounds = time.perf_counter(), 0
    budget = min(_SECONDS * len(samples), _MAX_SECONDS)
    while rounds == 0 or (rounds < _ROUNDS and time.perf_counter() - begin < budget):
        for name in list(samples) if rounds % 2 == 0 else list(samples)[::-1]:
            start = time.perf_counter()
            executables[name].run(outputs, feeds)
            samples[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: round(float(np.median(times)) * 1e3, 4) for name, times in samples.items()}


def _outputs(info: ModelInfo) -> list[str]:
    return [spec.name for spec in info.outputs]


def _fastest(tested: Sequence[Candidate]) -> str:
    times = {candidate.precision: candidate.milliseconds for candidate in tested if candidate.milliseconds is not None}
    if not times:
        return _BASE
    fastest = min(times, key=lambda name: times[name])
    return fastest if times[fastest] * _GAIN <= times[_BASE] else _BASE
