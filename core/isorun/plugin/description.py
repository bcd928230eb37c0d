"""A backend of another process, by what that process reports of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from isorun.errors import BackendFailed
from isorun.plugin import registry
from isorun.plugin.backend import Backend, Executable
from isorun.types import Availability, Capabilities, CompileConfig, Dialect, LoweredModel
from isorun.types.options import Option


def describe(backend: Backend) -> dict[str, Any]:
    """The contract, capabilities, availability and version of a backend, as plain data for JSON.

    Raises:
        BackendUnavailable: its ``version()`` raises, or returns something else than text.
    """
    dialects = [
        (str(name), name.as_dict() if isinstance(name, Dialect) else None) for name in backend.capabilities.dialects
    ]
    return {
        "contract": backend.contract,
        "capabilities": {**asdict(backend.capabilities), "dialects": dialects},
        "availability": asdict(registry.availability(backend)),
        "version": registry.ask(backend, "version", str | None),
    }


class DescribedBackend(Backend):
    """A backend that declares what :func:`describe` has returned elsewhere. It compiles nothing."""

    def __init__(self, name: str, described: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.contract = described["contract"]  # type: ignore[misc]  # a class attribute elsewhere
        offers: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in described["capabilities"].items()
        }
        offers["options"] = {key: Option.of(declared) for key, declared in offers["options"].items()}
        offers["dialects"] = tuple(Dialect(name, **own) if own else name for name, own in offers["dialects"])
        self.capabilities = Capabilities(**offers)  # type: ignore[misc]  # a class attribute elsewhere
        self._availability = Availability(**described["availability"])
        self._version: str | None = described["version"]

    def availability(self) -> Availability:
        return self._availability

    def version(self) -> str | None:
        return self._version

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:  # noqa: ARG002
        raise BackendFailed(f"{self.name} is not loaded in this process")
