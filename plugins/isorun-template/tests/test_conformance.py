"""isorun's own checks of a backend. Tests of what sets yours apart go beside this file."""

from isorun.testing.suite import Conformance


class TestTemplate(Conformance, backend="template"): ...
