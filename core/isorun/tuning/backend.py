"""The backend and precision for a model on this machine: measured by ``isorun choose``, remembered for sessions.

Every candidate runs in a worker process of its own, so that runtimes do not disturb each other and one that crashes
costs its own row. All are judged by the outputs of the model's own file in fp32. ``Session(backend="auto",
precision="auto")`` runs what was chosen, unless something has changed since.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from isorun.compilation import corpus
from isorun.compilation.compiled_model import CompiledModel
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import AUTO, Options
from isorun.errors import (
    BackendNotFound,
    BackendUnavailable,
    InvalidArgument,
    InvalidFeeds,
    UnsupportedModel,
    did_you_mean,
)
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.models.vectors import TextVectors
from isorun.plugin import listing, registry
from isorun.plugin.description import Description
from isorun.quality.labels import Labels
from isorun.system import json_files
from isorun.system.cache import sha256, versioned
from isorun.system.hardware import cpu_name
from isorun.system.threads import usable_cores
from isorun.tuning import candidates
from isorun.tuning.accuracy import Candidate, Labelled, ReferenceOutputs, Required, Run
from isorun.tuning.candidates import BASE, UNFIT, Key
from isorun.tuning.record import KIND, STAGES
from isorun.tuning.timing import TimingBudget

LATENCY, THROUGHPUT = "latency", "throughput"
_WORKLOADS = {LATENCY: (1, 64), THROUGHPUT: (32, 8)}  # rows of a batch, and number of batches
_SAMPLES = 512  # of the caller's; a quarter is judged on
_BUDGET = TimingBudget(rounds=7, seconds=120.0)
_LABELLED = 32  # texts in a batch
_RUN_SECONDS = 120.0  # of a run; then the worker is killed
_TEXTS = "calibration.json"

T = TypeVar("T")
_logger = logging.getLogger("isorun")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What ``isorun choose`` found.

    Attributes:
        backend, precision: the recommendation; empty if no candidate can be recommended.
        goal: ``latency``, requests one at a time, or ``throughput``, batches of 32.
        tolerance: the minimum cosine of any request's outputs to fp32.
        required: that of held-out requests, which must be closer.
        quality: the minimum share of a text's nearest neighbours that is kept; ``None`` if the model makes no vectors.
        candidates: everything that was measured, the fastest first, then what cannot be recommended.
        skipped: the backends that cannot be used, each with the reason.
        base: what ran the model's own file in fp32.
        judged_on, requests: where held-out requests are from, and how many.
        timed_on: the workload.
        date: when (UTC).
        about: what it depends on: the machine, versions and options.
        labels: what it was judged on instead of neighbours, in words; empty without labels.
    """

    backend: str
    precision: str
    goal: str
    tolerance: float
    required: float
    quality: float | None
    candidates: tuple[Candidate, ...]
    skipped: tuple[tuple[str, str], ...]
    base: str
    judged_on: str
    requests: int
    timed_on: str
    date: str
    about: Mapping[str, Any]
    labels: str = ""

    def note(self) -> dict[str, Any]:
        """How a session's precision and backend were chosen, as plain data for provenance."""
        facts = asdict(self)
        kept = ("tolerance", "required", "quality", "goal", "judged_on", "requests", "timed_on", "base", "date")
        chosen = {"requested": AUTO, "chosen": self.precision, "measured": "by `isorun choose`"}
        chosen |= {"labels": self.labels} if self.labels else {}
        return chosen | {name: facts[name] for name in kept} | {"candidates": list(facts["candidates"])}

    @property
    def default(self) -> Candidate | None:
        """What a session runs if nothing is requested: the first backend, in fp32."""
        by_key = {(candidate.backend, candidate.precision): candidate for candidate in self.candidates}
        names = [name for name in self.about["backends"] if (name, BASE) in by_key]
        return by_key[names[0], BASE] if names else None


def choose(
    compiler: Compiler,
    goal: str,
    names: Sequence[str] | None = None,
    show: Callable[[str], object] = lambda _: None,
    labels: Labels | None = None,
) -> Choice:
    """Measure every available backend and precision, and remember the best one.

    Args:
        compiler: the model, and options with the tolerance, the threads, and texts like those in use as calibration
            samples. int8 is calibrated on three of four; all candidates are judged on the others.
        goal: ``latency`` or ``throughput``.
        names: the backends; ``None`` for all that ``backend="auto"`` considers.
        show: is told about progress.
        labels: the task's own measure, of which the quality in the options must be kept, instead of neighbours.

    Raises:
        BackendNotFound: there is no backend of a name.
        InvalidArgument: ``backend="auto"`` never considers a backend.
        BackendUnavailable: no backend can run the model in fp32.
        InvalidFeeds: the model does not accept the samples.
        UnsupportedModel: feeds for the model cannot be generated.
    """
    options, graphs = compiler.options, compiler.graphs
    listed = listing.candidates(compiler.cache)
    usable = {description.name: description for description in listed if description.status == "available"}
    skipped = [(description.name, description.problem) for description in listed if description.name not in usable]
    if names is not None:
        for name in names:
            if name not in {description.name for description in listed}:
                known = [description.name for description in listed]
                if name in registry.names():
                    hint = did_you_mean(name, known)
                    raise InvalidArgument(f"backend='auto' never considers {name!r}, so it cannot be chosen{hint}")
                raise BackendNotFound(name, known)
        skipped = [(name, reason) for name, reason in skipped if name in names]
    considered = [description for description in usable.values() if names is None or description.name in names]
    required = Required.of(options, graphs)
    if labels is not None:
        vectors, why = TextVectors.find(compiler.source, graphs.info)
        if vectors is None:
            raise UnsupportedModel(f"Labels need a model that makes vectors of texts: {why}")
        feeds, _ = corpus.workload(graphs, labels.texts, _LABELLED, len(labels.texts))
        required = replace(required, labelled=Labelled(labels, feeds))
    samples = None if options.samples is None else corpus.spread(options.samples, _SAMPLES)
    if any(not isinstance(sample, str) for sample in samples or ()):
        raise InvalidFeeds("A choice can be stored only for texts, not for feeds. Pass texts")
    calibrated_on, held_out = corpus.split(samples)
    try:
        kinds, origin = corpus.held_out(graphs, held_out)
        workload, timed_on = corpus.workload(graphs, samples, *_WORKLOADS[goal])
    except InvalidFeeds as error:
        raise UnsupportedModel(f"The model cannot be measured: {error}") from error
    keys = [
        (description.name, name)
        for description in considered
        for name in description.capabilities.precisions
        if name not in candidates.WIDER
    ]
    reference, base = with_own_file(
        compiler, considered, lambda run: ReferenceOutputs.of(run, graphs.info, kinds, required), skipped, show
    )
    workers: dict[Key, Worker] = {}

    def open_run(key: Key) -> Run:
        name, precision = key
        show(f"compiling {name} in {precision} ({keys.index(key) + 1} of {len(keys)})")
        workers[key] = Worker(environments.current(), compiler.cache.root, _RUN_SECONDS)
        backend = workers[key].get(name)
        config = replace(compiler.config(backend), precision=precision)
        return partial(compiler.compile(backend, config, calibrated_on).run, graphs.info.output_names)

    try:
        tested = candidates.measure(
            keys, open_run, reference, workload, _BUDGET, show, close=lambda key: workers[key].close()
        )
    finally:
        for worker in workers.values():
            worker.close()
    best = candidates.best(tested)
    choice = Choice(
        backend=best.backend if best else "",
        precision=best.precision if best else "",
        goal=goal,
        tolerance=required.tolerance,
        required=required.cosine,
        quality=required.neighbours if required.vectors else None,
        candidates=tuple(sorted(tested, key=lambda candidate: (bool(candidate.reason), candidate.milliseconds or 0.0))),
        skipped=tuple(skipped),
        base=base,
        judged_on=origin,
        requests=sum(corpus.requests(feeds) for batches in kinds.values() for feeds in batches),
        timed_on=timed_on,
        date=datetime.now(UTC).date().isoformat(),
        about=_about(options, listed, best.backend if best else None),
        labels="" if labels is None else labels.size,
    )
    if best:
        texts = calibrated_on if best.precision == "int8" else None
        _remember(compiler, choice, texts)
    return choice


def remembered(compiler: Compiler, listed: Sequence[Description]) -> tuple[Choice, list[str] | None] | None:
    """The choice that holds for a session, and the texts that its int8 is calibrated on, ``None`` for isorun's own.

    A choice that was made for all outputs also holds for some of them. One that no longer holds is logged.

    Args:
        compiler: the model, and the session's options.
        listed: :func:`isorun.plugin.listing.candidates`.
    """
    options = compiler.options
    for outputs in dict.fromkeys((compiler.source.outputs, None)):
        entry = compiler.cache.get(KIND, _key(compiler, outputs))
        if entry is None:
            continue
        meta = entry.meta
        tested = tuple(Candidate(**candidate) for candidate in meta["candidates"])
        skipped = tuple((name, reason) for name, reason in meta["skipped"])
        choice = Choice(**{**meta, "candidates": tested, "skipped": skipped})
        if why := _why_not(choice, options, listed):
            _logger.warning(
                "`isorun choose` chose %s in %s, which is not used: %s", choice.backend, choice.precision, why
            )
            return None
        texts = entry.folder / _TEXTS
        return choice, json_files.read(texts) if texts.is_file() else None
    return None


def with_own_file(
    compiler: Compiler,
    considered: Sequence[Description],
    use: Callable[[Run], T],
    skipped: Sequence[tuple[str, str]] = (),
    show: Callable[[str], object] = lambda _: None,
) -> tuple[T, str]:
    """What ``use`` returns for the model's own file in fp32, and the backend that ran it.

    Args:
        compiler: the model, and the session's options.
        considered: the backends to run it on. The first that can does, those on the CPU before others.
        use: is called with a function that runs the model.
        skipped: other backends, each with the reason, for the error.
        show: is told about progress.

    Raises:
        BackendUnavailable: none of them runs it.
    """
    graphs, refusals = compiler.graphs, [f"\n  {name}: {reason}" for name, reason in skipped]
    for description in sorted(considered, key=lambda description: description.capabilities.devices[:1] != ("cpu",)):
        show(f"running the model's own file in {BASE} on {description.name}")
        worker = Worker(environments.current(), compiler.cache.root, _RUN_SECONDS)
        try:
            backend = worker.get(description.name)
            config = compiler.config(backend)
            plain = replace(config, precision=BASE, options={})
            run = partial(CompiledModel(backend, plain, graphs.as_given).run, graphs.info.output_names)
            return use(run), description.name
        except UNFIT as error:
            refusals.append(f"\n  {description.name}: {error}")
        finally:
            worker.close()
    raise BackendUnavailable(
        " or ".join([*(name for name, _ in skipped), *(description.name for description in considered)]) or AUTO,
        "none of them runs the model's own file in fp32, so there is no baseline",
        f"Install another backend.{''.join(refusals)}",
    )


def _about(options: Options, listed: Sequence[Description], chosen: str | None) -> dict[str, Any]:
    """What a choice depends on, in the words of a message."""
    return {
        "isorun": versioned("made", *STAGES),
        "processor": cpu_name(),
        "devices": list(registry.availability(registry.get(chosen)).devices) if chosen else [],
        "threads": options.threads or usable_cores(),
        "padding": options.padding,
        "backends": {backend.name: backend.version for backend in listed if backend.status == "available"},
    }


def _why_not(choice: Choice, options: Options, listed: Sequence[Description]) -> str:
    """Why a choice does not hold for a session; empty if it does."""
    for name in ("device", "environment", "deterministic", "backend_options", "samples"):
        if getattr(options, name):
            argument = {"backend_options": "options", "samples": "calibration"}.get(name, name)
            return f"the session sets `{argument}`"
    if options.tolerance not in (None, choice.tolerance):
        return f"the session sets `tolerance` to {options.tolerance}, and it was made with {choice.tolerance}"
    if options.quality is not None and choice.labels:
        return "the session sets `quality`, a share of neighbours, and it was made by labels"
    if options.quality not in (None, choice.quality):
        return f"the session sets `quality` to {options.quality}, and it was made with {choice.quality}"
    before, now = choice.about, json.loads(json.dumps(_about(options, listed, choice.backend)))
    for name in ("padding", "threads"):
        if getattr(options, name) not in (None, AUTO) and before[name] != now[name]:
            return f"the session sets `{name}` to {now[name]!r}, and it was made with {before[name]!r}"
    changed = [f"{name} was {before[name]}, now {value}" for name, value in now.items() if before[name] != value]
    return f"{'; '.join(changed)}. Run `isorun choose` again" if changed else ""


def _remember(compiler: Compiler, choice: Choice, calibrated_on: Sequence[Any] | None) -> None:
    def make(folder: Path) -> dict[str, Any]:
        if calibrated_on is not None:
            (folder / _TEXTS).write_text(json.dumps(calibrated_on), encoding="utf-8")
        return asdict(choice)

    key = _key(compiler, compiler.source.outputs)
    compiler.cache.get_or_make(KIND, key, make, models=compiler.source.models, private=True, again=True)


def _key(compiler: Compiler, outputs: tuple[str, ...] | None) -> str:
    parts = ("backend", compiler.source.content, corpus.digest(compiler.graphs, None), outputs)
    return sha256(repr(parts).encode())[:40]
