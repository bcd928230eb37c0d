"""Checks of a backend before it runs anything: found by name, described by data, truthful about its availability."""

from __future__ import annotations

from typing import Any

import pytest

from isorun.errors import BackendUnavailable
from isorun.plugin import registry, validation
from isorun.plugin.backend import Backend
from isorun.system.packages import package_version
from isorun.types import Availability, Finding
from isorun.types.options import Option
from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.sample_models import dense

_INSTALLED_SECONDS = 1.0
_LOADING_SECONDS = 2.0
_OF_ISORUN = f"{DOES_NOT_APPLY}: isorun itself imports {{}}"

# Needs a process of its own: this one may have imported the runtime already.
_ASK = """
import json, sys, time, warnings
name, package, hide = sys.argv[1:]
if hide:
    sys.modules[package] = None  # for find_spec and import, as if it were not installed
from isorun.plugin import registry
own = package in sys.modules and not hide
started = time.monotonic()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    backend = registry.get(name)
loading = {"loading": time.monotonic() - started, "warnings": [str(warning.message) for warning in caught]}
backend.installed()
imported = package in sys.modules and not hide
times = []
for _ in range(2):
    started = time.monotonic()
    backend.installed()
    times.append(time.monotonic() - started)
here = backend.availability()
answer = {"ok": here.ok, "reason": here.reason, "remedy": here.remedy}
print(json.dumps({**answer, **loading, "seconds": min(times), "imported": imported, "own": own}))
"""


class Discovery(Checks):
    """Discovery, metadata, availability."""

    @proves("discovery")
    def test_found_by_name(self) -> None:
        assert self.under_test.name in self.under_test.names()
        backend = self.under_test.backend
        assert isinstance(backend, Backend)
        assert backend.name == self.under_test.name, "__init__() must pass the name on to Backend.__init__()"

    @proves("discovery")
    def test_availability_imports_no_runtime(self) -> None:
        package = self._package()
        answer = self._ask()
        if answer["own"]:
            pytest.skip(_OF_ISORUN.format(package))
        assert not answer["imported"], (
            f"installed() imports {package!r}: import the runtime inside compile(), not at the top of a module"
        )

    @proves("discovery")
    def test_loading_is_quick_and_without_warnings(self) -> None:
        """Every list of backends loads the plugin."""
        attempts = [self._ask(of_package=False) for _ in range(2)]  # on a busy machine, the first may be slow
        warned = attempts[0]["warnings"]
        assert not warned, f"importing the plugin and making its backend warns: {warned[0]}"
        seconds = min(answer["loading"] for answer in attempts)
        assert seconds < _LOADING_SECONDS, (
            f"importing the plugin and making its backend takes {seconds:.1f} s: do what takes long in compile()"
        )

    @proves("discovery")
    def test_whether_it_is_installed_is_known_at_once(self) -> None:
        """Every session with ``backend="auto"`` asks."""
        seconds = self._ask()["seconds"]
        assert seconds < _INSTALLED_SECONDS, f"installed() took {seconds:.1f} s: do what takes long in probe()"

    @proves("metadata")
    def test_capabilities_are_valid(self) -> None:
        capabilities = self.under_test.capabilities  # an error if they are not
        assert capabilities == self.under_test.capabilities, "capabilities differ from one reading to the next"
        for field in ("dialects", "precisions", "typed", "devices", "reports"):
            values = getattr(capabilities, field)
            assert len(set(values)) == len(values), f"capabilities.{field} has a duplicate: {values}"

    @proves("metadata")
    def test_options_are_described(self) -> None:
        options = self.under_test.capabilities.options
        self.under_test.require(options, "options")
        for key, declared in options.items():
            assert Option.of(declared).help.strip(), f"option {key!r} has no description"

    @proves("availability")
    def test_methods_accept_the_arguments_of_the_contract(self) -> None:
        """Those of the executable; those of the backend are checked where it is looked up."""
        with self.under_test.compiled(self.under_test.lowered(dense())) as executable:
            problem = validation.executable_problem(executable)
        assert not problem, f"compile() must return {problem}"

    @proves("metadata")
    def test_version_is_that_of_the_package(self) -> None:
        package, reported = self._package(), registry.version(self.under_test.backend)
        installed = None if self.under_test.environment is not None else package_version(package)
        if installed is None:
            pytest.skip(f"the version of the package {package!r} is not known")
        assert reported == installed, f"version() returns {reported!r}; {package} {installed} is installed"

    @proves("metadata")
    def test_diagnosis_consists_of_findings(self) -> None:
        self.under_test.require_available()
        findings = self.under_test.backend.diagnose()
        wrong = [type(finding).__name__ for finding in findings if not isinstance(finding, Finding)]
        assert not wrong, f"diagnose() must return a sequence of isorun.plugin.Finding, got {', '.join(wrong)}"

    @proves("availability")
    def test_unavailability_has_a_reason_and_a_remedy(self) -> None:
        availability = self.under_test.backend.availability()
        assert isinstance(availability, Availability)
        assert availability.ok or availability.reason, "availability() is not ok and has no reason"
        assert availability.ok or availability.remedy, "availability() is not ok and has no remedy"

    @proves("availability")
    def test_available_backend_computes(self) -> None:
        self.under_test.require_available()
        model = dense()
        with self.under_test.open(model) as session:
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("availability")
    def test_unavailable_backend_is_refused(self) -> None:
        availability = self.under_test.backend.availability()
        if availability.ok:
            pytest.skip(f"{DOES_NOT_APPLY}: the backend is available")
        with pytest.raises(BackendUnavailable) as refusal:
            self.under_test.session(dense())
        assert availability.reason in str(refusal.value)

    @proves("availability")
    def test_unavailable_without_its_package(self) -> None:
        package = self._package()
        if self._ask()["own"]:
            pytest.skip(_OF_ISORUN.format(package))
        answer = self._ask(hide=True)
        assert not answer["ok"], f"without the package {package!r}, availability() is still ok"
        assert package in answer["reason"], f"the reason does not name the package {package!r}: {answer['reason']}"
        assert "install" in answer["remedy"].lower(), f"the remedy does not say what to install: {answer['remedy']}"

    def _package(self) -> str:
        package = self.under_test.capabilities.package
        self.under_test.require(package, "a package that its runtime comes in")
        assert package is not None
        return package

    def _ask(self, *, hide: bool = False, of_package: bool = True) -> dict[str, Any]:
        package = self._package() if of_package else ""
        arguments = (self.under_test.name, package, "hide" if hide else "")
        answer: dict[str, Any] = self.under_test.run_script("calls availability()", _ASK, *arguments)
        return answer
