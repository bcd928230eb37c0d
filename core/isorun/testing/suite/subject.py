"""The backend under test, and how the checks open models on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from isorun import Session, registry
from isorun import model as models
from isorun.backend import Backend, Executable
from isorun.cache import Cache
from isorun.errors import BackendUnavailable, IsorunError
from isorun.testing.parity import DEFAULT_TOLERANCES, Parity, Tolerance, compare, token_level_outputs
from isorun.testing.suite.samples import Bert, Sample, bert
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel

BIG_VARIABLE = "ISORUN_CONFORMANCE_BIG"
_ORACLE = "reference"


class Subject:
    """A backend by name, with a folder for the models and the cache of one run of the suite.

    Args:
        name: the backend's.
        options: for ``Session(options=...)``, in every check.
        big: whether to run the models that take minutes.
    """

    def __init__(self, name: str, options: Mapping[str, Any], big: bool) -> None:
        self.name = name
        self.options = dict(options)
        self.big = big

    @cached_property
    def backend(self) -> Backend:
        """The backend. Looking for it anew at every check would say the same again."""
        return registry.get(self.name)

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
        arguments = {
            "threads": self.config.threads,
            "cache_dir": self.folder / "cache",
            "options": self.options,
            **arguments,
        }
        path = model.path(self.folder) if isinstance(model, Sample) else model
        with self._honest_refusals(arguments.get("precision"), arguments.get("device")):
            return Session(path, self.name, **arguments)

    def lowered(self, sample: Sample, dialect: str) -> LoweredModel:
        """A model in one dialect."""
        cache = Cache(self.folder / "cache")
        lowered = models.lower(models.open_model(sample.path(self.folder), cache), (dialect,), cache)
        assert lowered.dialect == dialect, f"{sample} cannot be brought to the dialect {dialect!r}"
        return lowered

    @contextmanager
    def compiled(self, model: LoweredModel) -> Iterator[Executable]:
        """A model that the backend itself has made ready, without a session around it."""
        self.require_available()
        executable = self.backend.compile(model, self.config)
        try:
            yield executable
        finally:
            executable.close()

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
        return compare(
            outputs,
            self.expected(sample, feeds),
            feeds.get("attention_mask"),
            tolerance or self.tolerance(self.capabilities.precisions[0]),
            token_level=token_level_outputs(session.get_inputs(), session.get_outputs()),
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
    outputs = session.get_outputs()
    assert len(values) == len(outputs), f"the model has {len(outputs)} outputs; {len(values)} came"
    return {spec.name: value for spec, value in zip(outputs, values, strict=True)}


class Checks:
    """What every group of checks builds on: the subject, and parameters out of what it declares."""

    subject: ClassVar[Subject]

    def __init_subclass__(
        cls, backend: str | None = None, options: Mapping[str, Any] | None = None, big: bool | None = None, **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        if backend is not None:
            asked = os.environ.get(BIG_VARIABLE) == "1" if big is None else big
            cls.subject = Subject(backend, options or {}, asked)

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
