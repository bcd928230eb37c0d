"""The fastest precision that stays accurate, measured once and then remembered.

Each precision that a backend offers is compiled, compared with fp32 on requests held out of calibration, and, if it is
within the tolerance with a margin for unseen requests, timed, interleaved with the others. The result is cached for
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

from isorun.compilation import padding_policy as paddings
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.models import source as models
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache, sha256
from isorun.system.hardware import cpu_name
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo

AUTO = "auto"
TOLERANCE = 0.99
"""The minimum cosine of any request's outputs to fp32's, unless a caller says otherwise."""

_BASE = "fp32"
_WIDER = ("fp64",)  # than the base: no candidates
_GAIN = 1.05  # times as fast as fp32 has something to be that replaces it: less is noise
_ROUNDS, _SECONDS, _MOST_SECONDS = 40, 1.5, 20.0  # of timing; seconds for each precision, and for all of them at most

_logger = logging.getLogger(__name__)

Compiled = tuple[LoweredModel, Executable]
Samples = Sequence[Any] | None  # of isorun.compilation.corpus


@dataclass(frozen=True, slots=True)
class Candidate:
    """A precision that was tested.

    Attributes:
        precision: its name.
        milliseconds: the median time of a run; ``None`` where it was not timed.
        cosine: the least of any held-out request's outputs to fp32's; ``None`` where there is none.
        worst: the kind of that request.
        cosines: the least cosine of each kind.
        reason: why it could not be chosen; empty where it could.
    """

    precision: str
    milliseconds: float | None = None
    cosine: float | None = None
    worst: str | None = None
    cosines: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""


def check(precision: str, tolerance: float | None, *, calibrated: bool) -> None:
    """Reject an invalid tolerance, and a tolerance or samples that would have no effect.

    Raises:
        ValueError: the message names the argument.
    """
    if calibrated and precision not in ("int8", AUTO):
        raise ValueError(f"calibration has no effect with precision={precision!r}. Use precision='int8' or 'auto'")
    if tolerance is None:
        return
    if precision != AUTO:
        raise ValueError(f"tolerance has no effect with precision={precision!r}. Use precision='auto'")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a cosine above 0 and below 1, got {tolerance:g}")


def compile_as_asked(
    backend: Backend,
    source: models.ModelSource,
    config: CompileConfig,
    padding: str,
    cache: Cache,
    samples: Samples = None,
) -> Compiled:
    """Compile a model in the precision that the config names; for int8 it is calibrated first, unless it came so.

    Args:
        backend, source, config, padding, cache: as in :func:`isorun.compilation.padding_policy.compile_model`.
        samples: what int8 is calibrated on, as in :func:`isorun.compilation.calibration.calibrate`.

    Raises:
        BackendUnavailable: the model came in 8 bits, int8 is asked for, and the backend computes it in something else.
    """
    if config.precision != "int8":
        return paddings.compile_model(backend, source, config, padding, cache)
    if models.inspect(source, cache)[0].quantized:
        model, executable = paddings.compile_model(backend, source, config, padding, cache)
        _check_in_8_bits(backend, executable)
        return model, executable
    from isorun.compilation import calibration

    quantized = calibration.calibrate(backend, source, config, samples, cache)
    return paddings.compile_model(backend, source, config, padding, cache, quantized)


def _check_in_8_bits(backend: Backend, executable: Executable) -> None:
    """Refuse what runs another tool's integers in floating point. OpenVINO does that to all but Q and DQ."""
    try:
        reported = executable.report().precision
    except BaseException:
        executable.close()
        raise
    if "int8" not in reported.split("+"):
        executable.close()
        raise BackendUnavailable(
            backend.name,
            f"the model came in 8 bits, in a form that this backend computes in {reported}",
            "Ask for precision='fp32', under which a model runs as it came, or for another backend.",
        )


def compile_fastest(
    backend: Backend,
    source: models.ModelSource,
    config: CompileConfig,
    padding: str,
    cache: Cache,
    tolerance: float,
    samples: Samples = None,
) -> tuple[LoweredModel, Executable, CompileConfig, dict[str, Any]]:
    """Compile a model in the fastest precision that stays within a tolerance of fp32 on unseen requests.

    Args:
        backend: one that computes in fp32 among others.
        source: the model.
        config: what is asked for besides; its precision is not looked at.
        padding: as in :func:`isorun.compilation.padding_policy.compile_model`.
        cache: where the choice is remembered.
        tolerance: the minimum cosine of any request's outputs to fp32's, above 0 and below 1. A held-out request must
            be :data:`isorun.compilation.accuracy.MARGIN` times as near.
        samples: what int8 is calibrated on and the precisions are judged on (:func:`isorun.compilation.corpus.split`).

    Returns:
        The model, ready to run; the config with the precision chosen; and the candidates, as plain data.

    Raises:
        BackendUnavailable: the backend does not compute in fp32, which the others are compared with.
        InvalidFeeds: the model does not accept the samples.
        UnsupportedModel: feeds for the model cannot be generated; or as
            :func:`isorun.compilation.padding_policy.compile_model` says.
    """
    from isorun.compilation import accuracy, corpus

    offered = backend.capabilities.precisions
    if _BASE not in offered:
        raise BackendUnavailable(
            backend.name,
            "precision='auto' compares with fp32, which it does not compute in",
            f"It computes in {' and '.join(offered)}: ask for one of them.",
        )
    candidates = [_BASE, *(each for each in offered if each != _BASE and each not in _WIDER)]
    compiled: dict[str, Compiled] = {}
    calibrated_on, held_out = corpus.split(samples)
    required = accuracy.required_cosine(tolerance)
    asked = {"asked": AUTO, "tolerance": tolerance, "required": required}

    def compile_in(precision: str) -> Compiled:
        return compile_as_asked(backend, source, replace(config, precision=precision), padding, cache, calibrated_on)

    if len(candidates) == 1:
        note = {**asked, "chosen": _BASE, "tried": [], "measured": "not: it computes in nothing else"}
        return *compile_in(_BASE), replace(config, precision=_BASE), note

    def measure(_: object) -> dict[str, Any]:
        _logger.info("precision='auto': measuring %s on %s, once for this model", ", ".join(candidates), backend.name)
        compiled[_BASE] = compile_in(_BASE)
        info = compiled[_BASE][0].info
        if calibrated_on is not None:
            corpus.as_feeds(source, info, calibrated_on)  # refuses them, whether or not a candidate is calibrated
        try:
            kinds, origin = corpus.held_out(source, info, held_out)
            timed, shape = accuracy.timed(info)
        except InvalidFeeds as error:
            raise UnsupportedModel(
                f"precision='auto' runs the model to measure it. {error}. Name a precision instead"
            ) from error
        tested = []
        for precision in candidates[1:]:
            try:
                compiled[precision] = compile_in(precision)
            except (BackendUnavailable, UnsupportedModel, BackendFailed, InvalidFeeds) as error:
                tested.append(Candidate(precision, reason=str(error)))
        tested += _compare(compiled, info, kinds, required)
        accurate = [each.precision for each in tested if not each.reason]
        times = _time({name: compiled[name][1] for name in accurate}, timed) if len(accurate) > 1 else {}
        tested = [replace(each, milliseconds=times.get(each.precision)) for each in tested]
        for each in tested:
            _logger.info("%s: %s", each.precision, each.reason or f"cosine {each.cosine}, {each.milliseconds} ms")
        requests = {kind: sum(corpus.requests(each) for each in batches) for kind, batches in kinds.items()}
        about = {"judged_on": origin, "requests": requests, "timed_at": shape}
        return {"chosen": _fastest(tested), "tried": [asdict(each) for each in tested], **about}

    asked_for = (padding, tolerance, sorted((key, repr(value)) for key, value in config.options.items()))
    machine = (cpu_name(), config.device, config.threads)
    judged_on = corpus.digest(source, samples, cache)
    key = _key(source, backend.name, backend.version(), *machine, *asked_for, *candidates, judged_on)
    try:
        entry = cache.get_or_make("tuning", key, measure)
        chosen = entry.meta["chosen"]
        lowered, executable = compiled.pop(chosen) if chosen in compiled else compile_in(chosen)
    finally:
        for _, each in compiled.values():
            each.close()
    note = {**asked, **entry.meta, "measured": "earlier" if entry.found else "now"}
    return lowered, executable, replace(config, precision=chosen), note


def _key(source: models.ModelSource, *parts: object) -> str:
    """A name for all that a choice depends on."""
    from isorun.graph import code_digest

    return sha256(repr((code_digest(), source.fingerprint, *parts)).encode())[:40]


def _compare(
    compiled: Mapping[str, Compiled], info: ModelInfo, kinds: Mapping[str, Sequence[Feeds]], required: float
) -> list[Candidate]:
    """The precisions that compiled, each with how accurate it is."""
    from isorun.compilation import accuracy

    base = compiled[_BASE][1]
    expected = {kind: [base.run(None, feeds) for feeds in batches] for kind, batches in kinds.items()}
    tested = [Candidate(_BASE, cosine=1.0)]
    for precision, (_, executable) in compiled.items():
        if precision == _BASE:
            continue
        run = partial(executable.run, None)
        found = accuracy.judge(info, run, kinds, expected, accuracy.limits(required))
        worst, cosine = found.worst
        tested.append(Candidate(precision, None, cosine, worst, found.cosines, found.reason))
    return tested


def _time(executables: Mapping[str, Executable], feeds: Feeds) -> dict[str, float]:
    """The median time of a run in milliseconds, interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in executables}
    for executable in executables.values():
        executable.run(None, feeds)
    begin, rounds = time.perf_counter(), 0
    enough = min(_SECONDS * len(samples), _MOST_SECONDS)
    while rounds == 0 or (rounds < _ROUNDS and time.perf_counter() - begin < enough):
        for name in list(samples) if rounds % 2 == 0 else list(samples)[::-1]:
            start = time.perf_counter()
            executables[name].run(None, feeds)
            samples[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: round(float(np.median(each)) * 1e3, 4) for name, each in samples.items()}


def _fastest(tested: Sequence[Candidate]) -> str:
    times = {each.precision: each.milliseconds for each in tested if each.milliseconds is not None}
    if not times:
        return _BASE
    fastest = min(times, key=lambda name: times[name])
    return fastest if times[fastest] * _GAIN <= times[_BASE] else _BASE
