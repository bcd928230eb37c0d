"""isorun's conformance checks. Add tests of your own beside this file."""

from isorun_conformance.suite import Conformance


class TestTemplate(Conformance, backend="template"): ...
