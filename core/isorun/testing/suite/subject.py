"""The backend under test, and how the checks open models on it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from isorun import Session
from isorun.errors import BackendUnavailable, IsorunError
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.models import lowering
from isorun.models import source as models
from isorun.plugin import registry
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache
from isorun.testing.parity import DEFAULT_TOLERANCES, Parity, Tolerance, compare
from isorun.testing.suite.samples import Bert, Sample, bert
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel

BIG_VARIABLE = "ISORUN_CONFORMANCE_BIG"
_ORACLE = "reference"


class Subject:
    """A backend by name, with a folder for the models and the cache of one run of the suite.

    Args:
        name: the backend's.
        environment: the isolated environment that it runs in; ``None`` for this process.
        options: for ``Session(options=...)``, in every check.
        big: whether to run the models that take minutes.
    """

    def __init__(self, name: str, environment: str | None, options: Mapping[str, Any], big: bool) -> None:
        self.name = name
        self.environment = environment
        self.options = dict(options)
        self.big = big

    @cached_property
    def backend(self) -> Backend:
        """The backend. Looking for it anew at every check would say the same again."""
        return registry.get(self.name) if self._worker is None else self._worker.get(self.name)

    @cached_property
    def _worker(self) -> Worker | None:
        if self.environment is None:
            return None
        return Worker(environments.get(self.environment), self.folder / "cache")

    def names(self) -> list[str]:
        """The backends that are found where this one is."""
        return registry.names() if self._worker is None else self._worker.names()

    def interpreter(self) -> tuple[str, dict[str, str]]:
        """The interpreter that the backend is imported by, and the environment variables that it has."""
        if self._worker is None:
            return sys.executable, dict(os.environ)
        environment = self._worker.environment
        return str(environment.python), environment.variables(self.folder / "cache")

    @property
    def capabilities(self) -> Capabilities:
        """What it declares."""
        return self.backend.capabilities

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="isorun-conformance-")

    @property
    def folder(self) -> Path:
        """For models and the cache; gone when the suite ends."""
        return Path(self._folder.name)

    @cached_property
    def _oracles(self) -> dict[Path, Session]:
        return {}

    def close(self) -> None:
        """Remove the folder and what the oracle holds."""
        for session in self._oracles.values():
            session.close()
        self._oracles.clear()
        if "_worker" in self.__dict__ and self._worker is not None:
            self._worker.close()
        self._folder.cleanup()

    def bert(self, name: str = "bert-2x32") -> Bert:
        """A BERT of symbolic shapes where the backend declares that it takes them, else of fixed ones."""
        return bert(name, dynamic=self.capabilities.dynamic_shapes)

    def require_available(self) -> None:
        """Skip a check where the backend says that it cannot be used here."""
        here = self.backend.availability()
        if not here.ok:
            pytest.skip(f"{self.name} is not available here: {here.reason}. {here.remedy}")

    def require(self, declared: object, what: str) -> None:
        """Skip a check of what the backend does not declare."""
        if not declared:
            pytest.skip(f"not declared: {what}")

    def open(self, model: Sample | Path | bytes, **arguments: Any) -> Session:
        """A session on the backend, with one thread unless told otherwise, where that can be set.

        Skips the check where the backend says that this machine lacks what is asked for: never for what it declares
        first, since that is what it is.
        """
        self.require_available()
        with self._honest_refusals(arguments.get("precision"), arguments.get("device")):
            return self.session(model, **arguments)

    def session(self, model: Sample | Path | bytes, **arguments: Any) -> Session:
        """The same, with no check skipped."""
        usual = {"environment": self.environment, "cache_dir": self.folder / "cache"}
        arguments = {**usual, "threads": self.config.threads, "options": self.options, **arguments}
        if arguments.get("precision") == "int8" and isinstance(model, Sample):
            arguments["calibration"] = [model.feeds(seed) for seed in range(16)]
        return Session(model.path(self.folder) if isinstance(model, Sample) else model, self.name, **arguments)

    def lowered(self, sample: Sample, dialect: str, outputs: Sequence[str] | None = None) -> LoweredModel:
        """A model, or what some of its outputs need, in one dialect."""
        cache = Cache(self.folder / "cache")
        lowered = lowering.lower(models.open_model(sample.path(self.folder), cache, outputs), (dialect,), cache)
        assert lowered.dialect == dialect, f"{sample} cannot be brought to the dialect {dialect!r}"
        return lowered

    def as_it_is(self, sample: Sample) -> LoweredModel:
        """A model that is no encoder, which every backend gets as it came."""
        cache = Cache(self.folder / "cache")
        return lowering.lower(models.open_model(sample.path(self.folder), cache), self.capabilities.dialects, cache)

    @contextmanager
    def compiled(self, model: LoweredModel) -> Iterator[Executable]:
        """A model that the backend itself has made ready, without a session around it."""
        self.require_available()
        executable = self.backend.compile(model, self.config)
        try:
            yield executable
        finally:
            executable.close()

    def open_run_close(self, sample: Sample, feeds: Feeds) -> None:
        """Use a model once. In an environment by the one worker: what a session's own held would end with it."""
        if self._worker is None:
            with self.open(sample) as session:
                session.run(None, feeds)
        else:
            with self.compiled(self.as_it_is(sample)) as executable:
                executable.run(None, feeds)

    @property
    def config(self) -> CompileConfig:
        """What the backend declares first, on one thread where that can be set."""
        offers = self.capabilities
        return CompileConfig(offers.precisions[0], offers.devices[0], 1 if offers.sets_threads else None, self.options)

    @contextmanager
    def _honest_refusals(self, precision: str | None, device: str | None) -> Iterator[None]:
        offers = self.capabilities
        try:
            yield
        except BackendUnavailable as error:
            beyond_the_first = precision not in (None, offers.precisions[0]) or device not in (None, offers.devices[0])
            if beyond_the_first and error.backend == self.name:
                pytest.skip(f"this machine lacks it: {error.reason}")
            raise

    def expected(self, sample: Sample, feeds: Feeds) -> dict[str, np.ndarray]:
        """What the model gives in fp64: output name to array."""
        path = sample.path(self.folder)
        if path not in self._oracles:
            try:
                self._oracles[path] = Session(
                    path, _ORACLE, precision="fp64", padding="keep", cache_dir=self.folder / "oracle"
                )
            except IsorunError as error:
                raise IsorunError(f"The oracle that answers are compared with cannot run {sample}: {error}") from error
        oracle = self._oracles[path]
        return named(oracle, oracle.run(None, feeds))

    def compare(
        self,
        sample: Sample,
        session: Session,
        feeds: Feeds,
        outputs: Mapping[str, Any],
        tolerance: Tolerance | None = None,
    ) -> Parity:
        """Outputs beside the oracle's, by the tolerances of fp32 unless told otherwise."""
        expected, info = self.expected(sample, feeds), session.model_info
        return compare(
            outputs,
            {spec.name: expected[spec.name] for spec in session.get_outputs()},
            feeds.get(info.mask) if info.mask else None,
            tolerance or self.tolerance(self.capabilities.precisions[0]),
            token_level=info.token_outputs,
        )

    def tolerance(self, precision: str) -> Tolerance:
        """How far off answers in a precision may be."""
        return DEFAULT_TOLERANCES[precision]

    def assert_right(self, sample: Sample, session: Session, feeds: Feeds, tolerance: Tolerance | None = None) -> None:
        """Run once and compare every output with the oracle's."""
        outputs = named(session, session.run(None, feeds))
        parity = self.compare(sample, session, feeds, outputs, tolerance)
        assert parity.verdict == "pass", f"{sample} is wrong: {'; '.join(parity.reasons)}"


def named(session: Session, values: list[Any]) -> dict[str, Any]:
    """Output name to value, for all outputs."""
    assert isinstance(values, list), f"run() gives a {type(values).__name__}; a list of arrays is due"
    outputs = session.get_outputs()
    assert len(values) == len(outputs), f"the model has {len(outputs)} outputs; {len(values)} came"
    return {spec.name: value for spec, value in zip(outputs, values, strict=True)}


class Checks:
    """What every group of checks builds on: the subject, and parameters out of what it declares."""

    subject: ClassVar[Subject]

    def __init_subclass__(
        cls,
        backend: str | None = None,
        environment: str | None = None,
        options: Mapping[str, Any] | None = None,
        big: bool | None = None,
        **rest: Any,
    ) -> None:
        super().__init_subclass__(**rest)
        if backend is not None:
            asked = os.environ.get(BIG_VARIABLE) == "1" if big is None else big
            cls.subject = Subject(backend, environment, options or {}, asked)

    @classmethod
    def teardown_class(cls) -> None:
        """pytest calls this after the last check."""
        cls.subject.close()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A check with a parameter of one of these names runs once for each that the backend declares."""
        for name in ("dialect", "precision", "device"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, self._declared(f"{name}s"))

    def _declared(self, names: str) -> tuple[str, ...]:
        try:
            return tuple(getattr(self.subject.capabilities, names))
        except IsorunError:
            return ("unknown",)  # the check itself meets the error, and says so
