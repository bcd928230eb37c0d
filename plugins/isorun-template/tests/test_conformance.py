"""isorun's own checks of a backend. Tests of what sets yours apart go beside this file."""

from isorun.testing.conformance import Conformance


class TestTemplate(Conformance, backend="template"): ...
