"""What is known of a backend: one description for listings, selection and workers, plain data between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from isorun.errors import BackendFailed, BackendUnavailable
from isorun.plugin import certificate, registry
from isorun.plugin.backend import Backend, Executable
from isorun.types import Availability, Capabilities, CompileConfig, Dialect, LoweredModel, StaticShapes
from isorun.types.model_info import with_tuples
from isorun.types.options import Option

_NOTHING = Capabilities((), (), devices=())


@dataclass(frozen=True, kw_only=True)
class Description:
    """A backend, as ``isorun backends`` shows it.

    Attributes:
        name: its name, or the name of its family if it cannot be loaded.
        module: the module of its class; empty if it cannot be loaded.
        status: ``available``; ``unavailable`` here for a reason; or ``broken``, by a mistake of its plugin.
        reason, remedy: why it is not available, and what to do.
        distribution: what installed it, with its version.
        version: the version of the runtime.
        contract: the version of the plugin contract that it declares; 0 if it cannot be loaded.
        accelerators: the names of the GPUs or other accelerators that it may run on.
        certificate: what its certificate of conformance records (:func:`isorun.plugin.certificate.summary`).
        capabilities: what it declares; nothing if it cannot be loaded.
    """

    name: str
    module: str = ""
    status: str = "broken"
    reason: str = ""
    remedy: str = ""
    distribution: str = ""
    version: str | None = None
    contract: int = 0
    accelerators: Sequence[str] = ()
    certificate: Mapping[str, Any] | None = None
    capabilities: Capabilities = _NOTHING

    @classmethod
    def of(cls, backend: Backend, distribution: str = "", *, probe: bool = True) -> Self:
        """Describe a backend of this process; with ``probe``, load what only loading can tell
        (:meth:`Backend.probe`)."""
        known: dict[str, Any] = {
            "name": backend.name,
            "module": backend.__module__,
            "distribution": distribution,
            "contract": backend.contract,
            "certificate": certificate.summary(backend.name, backend.__module__),
            "capabilities": backend.capabilities,
        }
        try:
            availability = registry.ask_availability(backend, probe=probe)
            version = registry.version(backend)
        except BackendUnavailable as error:
            return cls(**known, reason=error.reason, remedy=error.remedy)
        return cls(
            **known,
            status="available" if availability.ok else "unavailable",
            reason=str(availability.reason),
            remedy=str(availability.remedy),
            version=version,
            accelerators=tuple(availability.devices),
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The description that :meth:`as_dict` wrote."""
        plain = with_tuples(data)
        own = {key: plain.pop(key) for key in _OWN}
        plain["dialects"] = tuple(Dialect(**item) if isinstance(item, dict) else item for item in plain["dialects"])
        if plain["static_shapes"] is not None:
            plain["static_shapes"] = StaticShapes(**with_tuples(plain["static_shapes"]))
        plain["options"] = {key: Option.of(declared) for key, declared in plain["options"].items()}
        return cls(**own, capabilities=Capabilities(**plain))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, the capabilities beside the rest."""
        offers = self.capabilities
        declared = {field.name: getattr(offers, field.name) for field in fields(offers)}
        return {
            **{key: getattr(self, key) for key in _OWN},
            **{key: dict(value) if isinstance(value, Mapping) else value for key, value in declared.items()},
            "dialects": [
                {"name": str(name), **name.as_dict()} if isinstance(name, Dialect) else name for name in offers.dialects
            ],
            "options": {key: asdict(Option.of(declared)) for key, declared in offers.options.items()},
            "static_shapes": None if offers.static_shapes is None else asdict(offers.static_shapes),
        }

    @property
    def problem(self) -> str:
        """Why it cannot be used, and what to do; empty if it is available."""
        return "" if self.status == "available" else f"{self.reason}. {self.remedy}".removesuffix(". ")


_OWN = [field.name for field in fields(Description) if field.name != "capabilities"]


class DescribedBackend(Backend):
    """A backend of another process, by its description. It compiles nothing."""

    def __init__(self, description: Description) -> None:
        super().__init__(description.name)
        self.__module__ = description.module  # that of its authors, for errors
        self.contract = description.contract  # type: ignore[misc]  # a class attribute elsewhere
        self.capabilities = description.capabilities  # type: ignore[misc]  # a class attribute elsewhere
        self._description = description

    def availability(self) -> Availability:
        known = self._description
        return Availability(known.status == "available", known.reason, known.remedy, known.accelerators)

    def version(self) -> str | None:
        return self._description.version

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:  # noqa: ARG002
        raise BackendFailed(f"{self.name} is not loaded in this process")
