"""isorun's conformance checks. Add tests of your own beside this file."""

from isorun.testing.conformance import Conformance


class TestTemplate(Conformance, backend="template"): ...
