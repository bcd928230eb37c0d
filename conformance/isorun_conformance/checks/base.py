"""What every group of checks builds on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from isorun.errors import IsorunError
from isorun.plugin import faults
from isorun.types.faults import ENDINGS, KnownFailure
from isorun_conformance import inherited_state
from isorun_conformance.backend_under_test import BackendUnderTest
from isorun_conformance.known_failures import Declared, function, matcher, of, parse, read, require_checks

BIG_VARIABLE = "ISORUN_CONFORMANCE_BIG"
DOES_NOT_APPLY = "does not apply"
"""How the reason of a skipped check begins if it concerns a backend that declares something else."""
UNDECIDED = "undecided"
"""How it begins if the check ran, and could not tell."""

_Check = TypeVar("_Check", bound=Callable[..., Any])


def proves(capability: str) -> Callable[[_Check], _Check]:
    """Mark a check with the capability that it proves, as the report names it; ``{precision}`` is replaced by the
    check's parameter of that name."""

    def mark(check: _Check) -> _Check:
        check.proves = capability  # type: ignore[attr-defined]
        return check

    return mark


def capability_of(check: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """The capability that a check proves, with its parameters filled in."""
    name: str = getattr(check, "proves", check.__name__)
    return name.format(**parameters)


class Checks:
    """A group of checks of one backend."""

    under_test: ClassVar[BackendUnderTest]
    known_failures: ClassVar[Mapping[str, KnownFailure]] = {}

    def __init_subclass__(
        cls,
        backend: str | None = None,
        environment: str | None = None,
        options: Mapping[str, Any] | None = None,
        big: bool | None = None,
        device: str | None = None,
        known_failures: Declared | Path | None = None,
        **rest: Any,
    ) -> None:
        super().__init_subclass__(**rest)
        if known_failures is not None:
            declared = read(known_failures) if isinstance(known_failures, Path) else parse(known_failures)
            require_checks(map(function, declared), (name for name in dir(cls) if name.startswith("test_")))
            cls.known_failures = declared
        if backend is not None:
            big = os.environ.get(BIG_VARIABLE) == "1" if big is None else big
            cls.under_test = BackendUnderTest(backend, environment, options or {}, big, device)

    @pytest.fixture(autouse=True)
    def _restore_inherited_state(self) -> Iterator[None]:
        with inherited_state.restored():
            yield

    @pytest.fixture(autouse=True)
    def _expect_known_failure(self, request: pytest.FixtureRequest) -> None:
        known = of(request.node.name, self._all_known_failures())
        if known is not None and known.exception in ENDINGS:  # it would end this process
            request.applymarker(pytest.mark.xfail(reason=known.reason, run=False))
        elif known is not None:
            request.applymarker(pytest.mark.xfail(reason=known.reason, strict=True, raises=matcher(known.exception)))

    def _all_known_failures(self) -> Mapping[str, KnownFailure]:
        """Those of the backend's table of known faults, and those of the class."""
        try:
            declared = faults.of(self.under_test.backend).checks
        except IsorunError:
            declared = {}  # the check itself meets the error and reports it
        return {**declared, **self.known_failures}

    @classmethod
    def teardown_class(cls) -> None:
        """pytest calls this after the last check."""
        cls.under_test.close()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a check with a parameter of one of these names once for each value that the backend declares."""
        for name in ("dialect", "precision", "device"):
            if name in metafunc.fixturenames:
                with inherited_state.restored():  # this imports the plugin
                    declared = self._declared(f"{name}s")
                metafunc.parametrize(name, declared)

    def _declared(self, names: str) -> tuple[str, ...]:
        try:
            declared = tuple(getattr(self.under_test.capabilities, names))
            return self.under_test.tested_devices() if names == "devices" else declared
        except IsorunError:
            return ("unknown",)  # the check itself meets the error and reports it
