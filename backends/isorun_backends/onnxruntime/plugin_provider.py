"""The backends ``ort-ep:NAME``, any installed plugin execution provider of ONNX Runtime, and ``ort-ep``, a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    Finding,
    LoweredModel,
    Option,
    UnsupportedModel,
    cpu_name,
    did_you_mean,
    package_owners,
)
from isorun_backends.onnxruntime import placement, plugin_packages, precision_probe
from isorun_backends.onnxruntime.executable import PluginExecutable
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime

_ANY = "any"
_TEXT = "tensor(string)"
_LIBRARY = Option("path of the library of a provider that is in no package", "path")
_DECLARABLE = (
    *("dialects", "precisions", "refused", "devices", "dynamic_shapes", "data_dependent_shapes", "thread_safe"),
    *("usable_after_failure", "checks_indices", "runs_on_caller", "tolerances", "priority", "faults"),
)
_PRECISION_OPTIONS = "precision_options"
_measured: dict[tuple[Any, ...], str] = {}  # precision by provider, device and options


class OrtEp(Backend):
    """A provider of which nothing is known but its library and what its package declares.

    Its measured precision must be the requested one.
    """

    contract = 2
    capabilities = Capabilities(
        dialects=("primitive", "onnx"),
        precisions=("fp32", "tf32", "fp16", "bf16"),
        devices=(_ANY, "cpu", "gpu", "npu"),
        options={
            **OPTIONS,
            "provider": Option("the provider's own options, which ONNX Runtime does not list", "mapping", default={}),
            "ep_name": Option("which provider of the library; the first by default", "str"),
            "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
        },
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement", "precision"),
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._member = name.partition(":")[2]
        self._found: str | None = None  # the module of a member
        self._precision_options: Mapping[str, Mapping[str, Any]] = {}
        offers = type(self).capabilities
        if self._member:
            self._found = plugin_packages.installed().get(self._member)
            offers = offers if self._found is None else self._declared(self._found)
        else:  # never selected automatically, since it needs a library
            offers = replace(offers, options={**offers.options, "library": _LIBRARY}, priority=None)
        self.capabilities = offers  # type: ignore[misc]  # a class attribute elsewhere

    def _declared(self, module: str) -> Capabilities:
        declared = dict(plugin_packages.declared(self.name, module))
        self._precision_options = declared.pop(_PRECISION_OPTIONS, {})
        for key in declared:
            if key not in _DECLARABLE:
                hint = did_you_mean(key, [*_DECLARABLE, _PRECISION_OPTIONS])
                raise plugin_packages.invalid(self.name, module, f"unknown key {key!r}{hint}")
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in declared.items()
        }
        offers = replace(type(self).capabilities, **fields)
        tables = self._precision_options
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise plugin_packages.invalid(self.name, module, f"{_PRECISION_OPTIONS} must be a table of tables")
        if unknown := [precision for precision in tables if precision not in offers.precisions]:
            problem = f"{_PRECISION_OPTIONS}: {unknown[0]!r} is not one of its precisions"
            raise plugin_packages.invalid(self.name, module, problem)
        return offers

    @classmethod
    def members(cls) -> tuple[str, ...]:
        return tuple(plugin_packages.installed())

    def installed(self) -> Availability:
        availability = super().installed()
        return checked(self._module) if availability.ok and self._member else availability

    def probe(self) -> Availability:
        """Loads the provider's library: nothing else can tell whether it has a device on this machine."""
        if not self._member:
            return Availability(ok=True)  # the library is not known before compile()
        return checked(lambda: plugin_packages.devices(self.name, self._module()))

    def diagnose(self) -> list[Finding]:
        if not self._member:
            return []
        module = self._module()
        owners = package_owners(module.partition(".")[0])
        try:
            plugin_packages.devices(self.name, module)
        except BackendUnavailable as error:
            subject, why = f"the backend {self.name}", "found by loading its library and listing its devices"
            if error.__cause__ is not None:
                command = f"pip install --upgrade {' '.join(['onnxruntime', *owners])}"
                return [Finding(subject, "error", error.reason, why, command)]
            command = f"pip uninstall -y {' '.join(owners)}   # or run it on a machine with its hardware"
            return [Finding(subject, "warning", error.reason, why, command)]
        return []

    def compile(self, model: LoweredModel, config: CompileConfig) -> PluginExecutable:
        options = self.read_options(config.options)
        if text := [spec.name for spec in (*model.info.inputs, *model.info.outputs) if spec.type == _TEXT]:
            raise UnsupportedModel(
                f"{self.name}: {model.path} has string tensors ({', '.join(text)}), on which providers abort the "
                "process (onnxruntime-ep-openvino 1.8.1). Use ort-cpu"
            )
        devices = self._devices(options)
        chosen = [device for device in devices if config.device in (_ANY, device.device.type.name.lower())]
        if not chosen:
            kinds = sorted({device.device.type.name.lower() for device in devices})
            raise BackendUnavailable(
                self.name, f"it has no device {config.device!r} here", f"Choose one of {', '.join(kinds)}."
            )
        provider = chosen[0].ep_name
        requested = as_text({**self._precision_options.get(config.precision, {}), **options["provider"]})

        def add_provider(ort_options: onnxruntime.SessionOptions) -> list[Any]:
            ort_options.add_provider_for_devices(chosen, requested)
            return []

        key = (provider, config.device, *sorted(requested.items()))
        if key not in _measured:
            _measured[key] = precision_probe.measure(provider, add_provider)
        computed = _measured[key]
        precision_probe.require(self.name, config.precision, computed)
        ort_options = session_options(options, config.threads)
        session = open_session(self.name, model, ort_options, add_provider(ort_options))
        nodes = placement.assigned(self.name, session)
        placement.require(self.name, provider, nodes, model.path, allow_cpu_nodes=options["allow_cpu_nodes"])
        hardware = [_hardware(device) for device in chosen]
        return PluginExecutable(
            self.name,
            session,
            _device_name(chosen[0]),
            computed,
            self._versions(chosen[0]),
            {"provider": provider, "devices": hardware, "provider_options": requested},
        )

    def _devices(self, options: Mapping[str, Any]) -> Sequence[onnxruntime.OrtEpDevice]:
        """The devices of the requested provider.

        Raises:
            BackendUnavailable: it has none here; or a library is required.
        """
        if self._member:
            return plugin_packages.devices(self.name, self._module(), options["ep_name"])
        if options["library"] is None:
            raise BackendUnavailable(
                self.name,
                f"it needs the name of a plugin execution provider, {self.name}:NAME{self._known()}",
                "Install a package such as onnxruntime-ep-openvino, or set options={'library': PATH}.",
            )
        return plugin_packages.library_devices(self.name, Path(options["library"]), options["ep_name"])

    def _versions(self, device: onnxruntime.OrtEpDevice) -> dict[str, str]:
        """The version of the provider's package if it has one, and of the provider itself."""
        of_package = plugin_packages.versions(self._module()) if self._member else {}
        return {**of_package, device.ep_name: dict(device.ep_metadata).get("version", "unknown")}

    def _module(self) -> str:
        """The module of this member.

        Raises:
            BackendUnavailable: its package is not installed.
        """
        if self._found is None:
            raise BackendUnavailable(
                self.name, f"its package is not installed{self._known()}", "Install it, or choose another backend."
            )
        return self._found

    def _known(self) -> str:
        installed = plugin_packages.installed()
        return did_you_mean(self._member, installed) if installed else "; none is installed"


def _hardware(device: onnxruntime.OrtEpDevice) -> str:
    return f"{device.device.vendor} {device.device.type.name}".strip()


def _device_name(device: onnxruntime.OrtEpDevice) -> str:
    """As the provider names it, otherwise of a processor its own name: ONNX Runtime knows only its vendor."""
    named = dict(device.ep_metadata).get("FULL_DEVICE_NAME")
    return named or (cpu_name() if device.device.type.name == "CPU" else _hardware(device))
