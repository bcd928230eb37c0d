"""The test file that pytest runs for ``isorun conformance``: the suite for the backend that the settings name."""

from __future__ import annotations

from collections.abc import Mapping

from isorun.types.faults import KnownFailure
from isorun_conformance.recorder import settings
from isorun_conformance.suite import Conformance

_SETTINGS = settings()


class TestConformance(
    Conformance,
    backend=_SETTINGS.backend,
    environment=_SETTINGS.environment,
    options=_SETTINGS.options,
    big=_SETTINGS.big,
    device=_SETTINGS.device,
):
    """All checks."""

    def _all_known_failures(self) -> Mapping[str, KnownFailure]:
        """The parent process knows them: here they fail."""
        return {}
