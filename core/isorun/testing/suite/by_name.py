"""The test file of ``isorun conformance``: the suite for the backend that the settings name."""

from __future__ import annotations

from isorun.testing.suite import Conformance
from isorun.testing.suite.child import SETTINGS


class TestConformance(
    Conformance,
    backend=SETTINGS.get("backend"),
    environment=SETTINGS.get("environment"),
    options=SETTINGS.get("options"),
    big=SETTINGS.get("big"),
):
    """All checks."""
