"""Which backend runs a model: the one that is named, or the first of several that can do what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.compilation import autotune
from isorun.compilation import padding_policy as paddings
from isorun.errors import BackendFailed, BackendNotFound, BackendUnavailable, InvalidOption, UnsupportedModel, nearest
from isorun.models import source as models
from isorun.plugin import registry
from isorun.plugin.backend import Backend, Executable
from isorun.system import threads as thread_counts
from isorun.system.cache import Cache
from isorun.types import Capabilities, CompileConfig, LoweredModel, Provenance

if TYPE_CHECKING:
    from isorun.isolation.worker.backend import Worker


_MAX_TIMEOUT = 1e6  # seconds


class Wishes(NamedTuple):
    """What the caller asks for, before a backend is known: see :class:`isorun.session.session.Session`."""

    device: str | None
    precision: str
    padding: str
    threads: int | None
    options: Mapping[str, Any]
    environment: str | None = None
    calibration: Sequence[Any] | None = None
    tolerance: float = autotune.TOLERANCE
    timeout: float | None = None

    @classmethod
    def of(
        cls,
        device: str | None,
        precision: str,
        padding: str,
        threads: int | None,
        tolerance: float | None,
        environment: str | None,
        options: Mapping[str, Any] | None,
        calibration: Iterable[Any] | None,
        timeout: float | None = None,
    ) -> Wishes:
        """A session's arguments, once it is known that each means something.

        Raises:
            ValueError, TypeError: one means nothing, or is one that nothing would heed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"options is a mapping of names to values; a {type(options).__name__} came")
        if isinstance(calibration, str | Mapping):
            kind = type(calibration).__name__
            raise TypeError(f"calibration is a list of texts or of feeds; a {kind} came. Put it in a list")
        _check_timeout(timeout, environment)
        thread_counts.check(threads)
        paddings.check(padding)
        autotune.check(precision, tolerance, calibrated=calibration is not None)
        samples = None if calibration is None else list(calibration)
        near = autotune.TOLERANCE if tolerance is None else tolerance
        return cls(device, precision, padding, threads, dict(options or {}), environment, samples, near, timeout)


class Resolved(NamedTuple):
    """The backend that took the model, and what came of it there."""

    backend: Backend
    model: LoweredModel
    config: CompileConfig
    executable: Executable
    tuned: Mapping[str, Any]
    passed_over: tuple[tuple[str, str], ...]
    worker: Worker | None
    """Where it runs; ``None`` for this process."""

    def close(self) -> None:
        """Let go of the model, and of the worker."""
        self.executable.close()
        if self.worker is not None:
            self.worker.close()

    def provenance(self) -> Provenance:
        """What runs, where, and how it came about: asked of the runtime."""
        from importlib.metadata import version

        report = self.executable.report()
        notes = {"graph": dict(self.model.notes), "precision": dict(self.tuned)}
        notes = {name: note for name, note in notes.items() if note}
        return Provenance(
            backend=self.backend.name,
            device=report.device,
            precision=report.precision,
            threads=self.config.threads,
            operators=report.operators,
            fused=self.model.info.fused,
            dialect=self.model.dialect,
            fingerprint=self.model.fingerprint,
            cache="found" if self.model.cached else "made",
            passed_over=self.passed_over,
            versions={"isorun": version("isorun"), **report.versions},
            environment={} if self.worker is None else self.worker.about(),
            details={**report.details, **notes},
        )


def resolve(source: models.ModelSource, backend: str | Sequence[str], wishes: Wishes, cache: Cache) -> Resolved:
    """Compile a model on the backend of a name, or on the first of several that can do what is asked.

    Args:
        source: the model.
        backend: a name, names in order of preference, or ``"auto"``.
        wishes: what is asked of it.
        cache: where lowered models are kept.

    Raises:
        BackendNotFound, BackendUnavailable, InvalidOption, UnsupportedModel, BackendFailed: of a single name, its
            own; of several, BackendUnavailable, with the reason of each.
        EnvironmentNotFound, EnvironmentBroken: there is no such environment, or its interpreter is gone.
    """
    if wishes.environment is None:
        return _resolve(source, backend, wishes, cache, None)
    from isorun.isolation import environments
    from isorun.isolation.worker.backend import Worker

    worker = Worker(environments.get(wishes.environment), cache.root, wishes.timeout)
    try:
        return _resolve(source, backend, wishes, cache, worker)
    except BaseException:
        worker.close()
        raise


def _resolve(
    source: models.ModelSource, backend: str | Sequence[str], wishes: Wishes, cache: Cache, worker: Worker | None
) -> Resolved:
    find = registry.get if worker is None else worker.get
    if backend == "auto":
        wanted: tuple[str, ...] = registry.AUTO_ORDER
    elif isinstance(backend, str):
        return Resolved(*_compile(source, find(backend), wishes, cache), (), worker)
    elif isinstance(backend, Sequence) and all(isinstance(name, str) for name in backend):
        wanted = tuple(backend)
    else:
        raise TypeError(f"backend is a name, a list of names or 'auto'; {backend!r} came")
    if not wanted:
        raise ValueError("backend is an empty list; name at least one, or 'auto'")
    passed_over: list[tuple[str, str]] = []
    for name in wanted:
        try:
            return Resolved(*_compile(source, find(name), wishes, cache), tuple(passed_over), worker)
        except BackendUnavailable as error:
            passed_over.append((name, f"{error.reason}. {error.remedy}"))
        except (BackendNotFound, InvalidOption, UnsupportedModel, BackendFailed) as error:
            passed_over.append((name, str(error)))
    tried = "\n".join(f"  {name}: {reason}" for name, reason in passed_over)
    raise BackendUnavailable(
        " or ".join(wanted), "none of them can run this model as asked", f"Mend one of these:\n{tried}"
    )


def _compile(
    source: models.ModelSource, backend: Backend, wishes: Wishes, cache: Cache
) -> tuple[Backend, LoweredModel, CompileConfig, Executable, Mapping[str, Any]]:
    config = _config(backend, wishes, cache)
    if wishes.precision == autotune.AUTO:
        model, executable, config, tuned = autotune.compile_fastest(
            backend, source, config, wishes.padding, cache, wishes.tolerance, wishes.calibration
        )
        return backend, model, config, executable, tuned
    model, executable = autotune.compile_as_asked(backend, source, config, wishes.padding, cache, wishes.calibration)
    return backend, model, config, executable, {}


def _config(backend: Backend, wishes: Wishes, cache: Cache) -> CompileConfig:
    """What the caller asks for, once this backend is known to be here and to offer it."""
    here = registry.availability(backend)
    if not here.ok:
        raise BackendUnavailable(backend.name, here.reason, here.remedy)
    offers = backend.capabilities
    if wishes.precision not in (*offers.precisions, autotune.AUTO):
        raise BackendUnavailable(
            backend.name,
            f"it does not compute in {wishes.precision!r}{_instead(wishes.precision, offers)}",
            f"It computes in {', '.join(offers.precisions)}: ask for one of these, or another backend.",
        )
    device = offers.devices[0] if wishes.device is None else wishes.device
    if device not in offers.devices:
        raise BackendUnavailable(
            backend.name, f"it has no device {device!r}", f"It runs on {' and '.join(offers.devices)}."
        )
    if wishes.threads is not None and not offers.sets_threads:
        raise BackendUnavailable(
            backend.name,
            f"the number of its threads cannot be set, and threads is {wishes.threads}",
            "Leave threads out, or ask for another backend.",
        )
    backend.read_options(wishes.options)
    threads = wishes.threads or thread_counts.usable_cores() if offers.sets_threads else None
    return CompileConfig(wishes.precision, device, threads, wishes.options, str(cache.root))


def _check_timeout(timeout: float | None, environment: str | None) -> None:
    if timeout is None:
        return
    if environment is None:
        raise ValueError(
            "`timeout` has no effect without `environment`: a run in this process cannot be interrupted. Omit it, or "
            "run in an environment"
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _MAX_TIMEOUT:
        raise ValueError(f"timeout must be a number of seconds above 0 and at most {_MAX_TIMEOUT:g}, got {timeout!r}")


def _instead(precision: str, offers: Capabilities) -> str:
    """What the runtime would do in a precision's place; of one that isorun never heard of, the nearest."""
    if what := offers.refused.get(precision):
        return f": {what}"
    from isorun.parity.tolerance import DEFAULT_TOLERANCES

    near = None if precision in DEFAULT_TOLERANCES else nearest(str(precision), offers.precisions)
    return f" (did you mean {near!r}?)" if near else ""
