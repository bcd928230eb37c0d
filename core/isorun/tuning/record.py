"""What was measured, in the cache: one entry for each model, request and machine."""

from __future__ import annotations

from typing import NamedTuple

from isorun.compilation.compiler import Compiler
from isorun.plugin import registry
from isorun.plugin.backend import Backend
from isorun.system.cache import sha256, versioned
from isorun.system.hardware import cpu_name
from isorun.types import CompileConfig

KIND = "tuning"
"""The kind of the cache entries."""

STAGES = ("lowering", "calibration", "tuning")
"""What a result depends on in isorun itself."""


class Subject(NamedTuple):
    """What is measured: a model, a backend and the options that it gets."""

    compiler: Compiler
    backend: Backend
    config: CompileConfig

    def key(self, purpose: str, *details: object) -> str:
        """The key of the record for a purpose. It changes with the model, the backend, its version, the device, the
        options and the versions of isorun's stages.

        Args:
            purpose: what is selected.
            details: what else the result depends on.
        """
        compiler, backend, config = self
        session = compiler.options
        options = sorted((name, repr(value)) for name, value in config.options.items())
        devices = (config.device, cpu_name(), *config.accelerators)
        request = (config.threads, options, session.padding, session.deterministic, session.environment)
        source = (compiler.source.fingerprint, backend.name, registry.version(backend))
        key = sha256(repr((purpose, source, devices, request, details)).encode())[:40]
        return versioned(key, *STAGES)
