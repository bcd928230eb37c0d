"""Checks of what a backend is before it runs anything: found by name, described by data, honest about being here."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from isorun.errors import BackendUnavailable
from isorun.plugin.backend import Backend
from isorun.testing.parity import DEFAULT_TOLERANCES
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import dense
from isorun.testing.suite.subject import Checks
from isorun.types import Availability, Capabilities

_REPORTS = ("placement", "precision")

# In a process of its own: what this one has imported proves nothing.
_ASK = """
import json, sys
name, package, hide = sys.argv[1:]
if hide:
    sys.modules[package] = None  # to find_spec and to import, as if it were not installed
from isorun.plugin import registry
here = registry.get(name).availability()
imported = package in sys.modules and not hide
print(json.dumps({"ok": here.ok, "reason": here.reason, "remedy": here.remedy, "imported": imported}))
"""


class Discovery(Checks):
    """Discovery, metadata, availability."""

    @proves("discovery")
    def test_it_is_found_by_its_name(self) -> None:
        assert self.subject.name in self.subject.names()
        backend = self.subject.backend
        assert isinstance(backend, Backend)
        assert backend.name == self.subject.name, "its __init__ has to hand the name on to Backend.__init__"

    @proves("discovery")
    def test_being_asked_whether_it_is_here_imports_no_runtime(self) -> None:
        package = self.subject.capabilities.package
        self.subject.require(package, "a package that its runtime comes in")
        assert not self._ask()["imported"], (
            f"listing backends imports {package!r}: import the runtime inside compile(), not at the top of a module"
        )

    @proves("metadata")
    def test_capabilities_are_of_the_known_kinds(self) -> None:
        from isorun.graph.ops.functions import FUSED, dialects

        offers = self.subject.capabilities
        assert isinstance(offers, Capabilities)
        for field, known in (
            ("dialects", (*dialects(), FUSED)),
            ("precisions", tuple(DEFAULT_TOLERANCES)),
            ("reports", _REPORTS),
            ("devices", None),
        ):
            values = getattr(offers, field)
            assert isinstance(values, tuple), f"capabilities.{field} is a {type(values).__name__}, not a tuple"
            assert values or field == "reports", f"capabilities.{field} is empty"
            assert len(set(values)) == len(values), f"capabilities.{field} names something twice: {values}"
            unknown = [value for value in values if known is not None and value not in known]
            assert not unknown, f"capabilities.{field} names {unknown}; isorun knows {', '.join(known or ())}"

    @proves("metadata")
    def test_options_are_described(self) -> None:
        options = self.subject.capabilities.options
        self.subject.require(options, "options")
        for key, meaning in options.items():
            assert isinstance(meaning, str), f"option {key!r} is described by a {type(meaning).__name__}"
            assert meaning.strip(), f"option {key!r} has no description"

    @proves("availability")
    def test_it_says_whether_it_is_here_and_if_not_why(self) -> None:
        here = self.subject.backend.availability()
        assert isinstance(here, Availability)
        assert here.ok or here.reason, "availability() says no and gives no reason"
        assert here.ok or here.remedy, "availability() says no and gives no remedy"

    @proves("availability")
    def test_what_says_that_it_is_here_computes(self) -> None:
        self.subject.require_available()
        model = dense()
        with self.subject.open(model) as session:
            self.subject.assert_right(model, session, model.feeds())

    @proves("availability")
    def test_what_says_that_it_is_not_here_is_refused(self) -> None:
        here = self.subject.backend.availability()
        if here.ok:
            pytest.skip("does not apply: it is here")
        with pytest.raises(BackendUnavailable) as refusal:
            self.subject.session(dense())
        assert here.reason in str(refusal.value)

    @proves("availability")
    def test_without_its_package_it_is_not_here_and_names_what_to_install(self) -> None:
        package = self.subject.capabilities.package
        self.subject.require(package, "a package that its runtime comes in")
        here = self._ask(hide=True)
        assert not here["ok"], f"without the package {package!r}, availability() still says that the backend is here"
        assert package in here["reason"], f"the reason does not name {package!r}: {here['reason']}"
        assert "install" in here["remedy"].lower(), f"the remedy says nothing to install: {here['remedy']}"

    def _ask(self, *, hide: bool = False) -> dict[str, Any]:
        package = self.subject.capabilities.package or ""
        python, variables = self.subject.interpreter()
        ran = subprocess.run(
            [python, "-P", "-c", _ASK, self.subject.name, package, "hide" if hide else ""],
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, f"availability() raises or its process ends: {ran.stderr.strip()[-500:]}"
        answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return answer
