"""The known faults of a backend's runtime, found by the name that its capabilities declare."""

from __future__ import annotations

from importlib import import_module

from isorun.errors import BackendUnavailable
from isorun.plugin.backend import Backend
from isorun.types.faults import KnownFaults


def of(backend: Backend) -> KnownFaults:
    """The known faults of a backend; those of a backend in an isolated environment too. Raises ``BackendUnavailable``
    if the table cannot be imported in this process, which prepares the backend's graphs."""
    declared = backend.capabilities.faults
    if not declared:
        return KnownFaults()
    module, _, name = declared.partition(":")
    try:
        faults = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            backend.name,
            f"its table of known faults {declared!r} cannot be imported: {error}",
            "Install its distribution in the environment of this process too.",
        ) from error
    if not isinstance(faults, KnownFaults):
        raise BackendUnavailable(
            backend.name,
            f"{declared} must be an isorun.plugin.KnownFaults, got {type(faults).__name__}",
            "Report it to the authors of the backend.",
        )
    return faults
