"""The precision that runs a model fastest here and stays close to fp32: measured once, then remembered.

Each precision that a backend offers is compiled, compared with fp32, and, if it is within the tolerance, timed by turns
with the others. What was found is kept in the cache for this model, backend and version, number of threads, options and
processor. :mod:`isorun.compilation.accuracy` says what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
"""The least cosine of any request's outputs to fp32's, unless a caller says otherwise."""

_BASE = "fp32"
_WIDER = ("fp64",)  # than the base: no candidates
_GAIN = 1.05  # times as fast as fp32 has something to be that replaces it: less is noise
_ROUNDS, _SECONDS, _MOST_SECONDS = 40, 1.5, 20.0  # of timing; seconds for each precision, and for all of them at most

Compiled = tuple[LoweredModel, Executable]
Samples = Sequence[Any] | None  # of isorun.compilation.calibration


@dataclass(frozen=True, slots=True)
class Tried:
    """A precision that was tried.

    Attributes:
        precision: its name.
        milliseconds: the median time of a run; ``None`` where it was not timed.
        cosine: the least of any request's outputs to fp32's; ``None`` where there is none.
        reason: why it could not be chosen; empty where it could.
    """

    precision: str
    milliseconds: float | None
    cosine: float | None
    reason: str


def check(precision: str, tolerance: float | None, *, calibrated: bool) -> None:
    """Refuse a tolerance that means nothing, and one or samples that nothing would heed."""
    if calibrated and precision not in ("int8", AUTO):
        raise ValueError(
            f"calibration is for precision='int8' and 'auto'; with precision={precision!r} nothing is made to suit it"
        )
    if tolerance is None:
        return
    if precision != AUTO:
        raise ValueError(f"tolerance is for precision='auto'; with precision={precision!r} nothing is chosen by it")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance is {tolerance:g}; it is the least cosine to fp32, above 0 and below 1")


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
    """Compile a model in the fastest precision that is within a tolerance of fp32.

    Args:
        backend: one that computes in fp32 among others.
        source: the model.
        config: what is asked for besides; its precision is not looked at.
        padding: as in :func:`isorun.compilation.padding_policy.compile_model`.
        cache: where the choice is remembered.
        tolerance: the least cosine of any request's outputs to fp32's, above 0 and below 1.
        samples: what int8 is calibrated on, as in :func:`compile_as_asked`.

    Returns:
        The model, ready to run; the config with the precision chosen; and what was tried, as plain data.

    Raises:
        BackendUnavailable: the backend does not compute in fp32, which the others are compared with.
        UnsupportedModel: feeds for the model cannot be generated; or as
            :func:`isorun.compilation.padding_policy.compile_model` says.
    """
    offered = backend.capabilities.precisions
    if _BASE not in offered:
        raise BackendUnavailable(
            backend.name,
            "precision='auto' compares with fp32, which it does not compute in",
            f"It computes in {' and '.join(offered)}: ask for one of them.",
        )
    candidates = [_BASE, *(each for each in offered if each != _BASE and each not in _WIDER)]
    compiled: dict[str, Compiled] = {}
    asked = {"asked": AUTO, "tolerance": tolerance}

    def compile_in(precision: str) -> Compiled:
        return compile_as_asked(backend, source, replace(config, precision=precision), padding, cache, samples)

    if len(candidates) == 1:
        note = {**asked, "chosen": _BASE, "tried": [], "measured": "not: it computes in nothing else"}
        return *compile_in(_BASE), replace(config, precision=_BASE), note

    from isorun.compilation import accuracy

    def measure(_: object) -> dict[str, Any]:
        tried = []
        compiled[_BASE] = compile_in(_BASE)
        info = compiled[_BASE][0].info
        try:
            checked, origin = accuracy.requests(source, info, samples, cache)
            timed, shape = accuracy.timed(info)
        except InvalidFeeds as error:
            raise UnsupportedModel(
                f"precision='auto' runs the model to measure it. {error}. Name a precision instead"
            ) from error
        for precision in candidates[1:]:
            try:
                compiled[precision] = compile_in(precision)
            except (BackendUnavailable, UnsupportedModel, BackendFailed, InvalidFeeds) as error:
                tried.append(Tried(precision, None, None, str(error)))
        near, beyond = _compare(compiled, info, checked, tolerance)
        tried += beyond
        times = _time({name: compiled[name][1] for name in near}, timed) if len(near) > 1 else {}
        tried += [Tried(name, times.get(name), cosine, "") for name, cosine in near.items()]
        times_of = {"compared_on": origin, "timed_at": shape}
        return {"chosen": _fastest(tried), "tried": [asdict(each) for each in tried], **times_of}

    asked_for = (padding, tolerance, sorted((key, repr(value)) for key, value in config.options.items()))
    machine = (cpu_name(), config.device, config.threads)
    key = _key(
        source, backend.name, backend.version(), *machine, *asked_for, *candidates, accuracy.digest(source, samples)
    )
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
    compiled: Mapping[str, Compiled], info: ModelInfo, feeds: Sequence[Feeds], tolerance: float
) -> tuple[dict[str, float | None], list[Tried]]:
    """The precisions within the tolerance, each with its least cosine; and those beyond it."""
    from isorun.compilation import accuracy

    within = accuracy.limits(tolerance)
    expected = [compiled[_BASE][1].run(None, given) for given in feeds]
    near: dict[str, float | None] = {_BASE: 1.0}
    beyond = []
    for precision in compiled:
        if precision == _BASE:
            continue
        try:
            found = [
                accuracy.differ(info, compiled[precision][1].run(None, given), right, given, within)
                for given, right in zip(feeds, expected, strict=True)
            ]
        except BackendFailed as error:
            beyond.append(Tried(precision, None, None, str(error)))
            continue
        cosines = [cosine for each in found if (cosine := each.as_dict()["cosine"]) is not None]
        least = min(cosines, default=None)
        if reasons := [reason for each in found for reason in each.reasons]:
            stated = next((each for each in reasons if ": cosine is" in each), reasons[0])
            beyond.append(Tried(precision, None, least, stated))
        else:
            near[precision] = least
    return near, beyond


def _time(executables: Mapping[str, Executable], feeds: Feeds) -> dict[str, float]:
    """The median time of a run in milliseconds, all of them by turns."""
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


def _fastest(tried: Sequence[Tried]) -> str:
    times = {each.precision: each.milliseconds for each in tried if each.milliseconds is not None}
    if not times:
        return _BASE
    fastest = min(times, key=lambda name: times[name])
    return fastest if times[fastest] * _GAIN <= times[_BASE] else _BASE
