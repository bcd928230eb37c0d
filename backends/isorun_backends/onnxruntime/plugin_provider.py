"""The backends ``ort-ep:NAME``: any installed plugin execution provider of ONNX Runtime."""

from __future__ import annotations

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
    did_you_mean,
    package_owners,
    package_version,
)
from isorun_backends.onnxruntime import placement, plugin_packages, precision_probe
from isorun_backends.onnxruntime.executable import OrtExecutable
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime

_ANY = "any"


class OrtEp(Backend):
    """A provider of which nothing is known but its library. Its measured precision must be the requested one."""

    contract = 2
    capabilities = Capabilities(
        dialects=("primitive", "onnx"),
        precisions=("fp32", "tf32", "fp16", "bf16"),
        devices=(_ANY, "cpu", "gpu", "npu"),
        options={
            **OPTIONS,
            "provider": Option("the provider's own options, which ONNX Runtime does not list", "mapping", default={}),
            "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
        },
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement", "precision"),
    )

    @classmethod
    def members(cls) -> tuple[str, ...]:
        return tuple(plugin_packages.installed())

    def installed(self) -> Availability:
        here = super().installed()
        return checked(self._package) if here.ok else here

    def probe(self) -> Availability:
        """Loads the provider's library: nothing else can tell whether it has a device on this machine."""
        return checked(lambda: plugin_packages.devices(self.name, self._package()))

    def diagnose(self) -> list[Finding]:
        package = self._package()
        owners = package_owners(package)
        try:
            plugin_packages.devices(self.name, package)
        except BackendUnavailable as error:
            subject, why = f"the backend {self.name}", "found by loading its library and listing its devices"
            if error.__cause__ is not None:
                command = f"pip install --upgrade {' '.join(['onnxruntime', *owners])}"
                return [Finding(subject, "error", error.reason, why, command)]
            command = f"pip uninstall -y {' '.join(owners)}   # or run it on a machine with its hardware"
            return [Finding(subject, "warning", error.reason, why, command)]
        return []

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtExecutable:
        options, package = self.read_options(config.options), self._package()
        devices = list(plugin_packages.devices(self.name, package))
        chosen = [each for each in devices if config.device in (_ANY, each.device.type.name.lower())]
        if not chosen:
            kinds = sorted({each.device.type.name.lower() for each in devices})
            raise BackendUnavailable(
                self.name, f"it has no device {config.device!r} here", f"Choose one of {', '.join(kinds)}."
            )
        provider = chosen[0].ep_name

        def add_provider(made: onnxruntime.SessionOptions) -> list[Any]:
            made.add_provider_for_devices(chosen, as_text(options["provider"]))
            return []

        computed = precision_probe.measure(provider, add_provider)
        precision_probe.require(self.name, config.precision, computed)
        made = session_options(options, config.threads)
        session = open_session(self.name, model, made, add_provider(made))
        nodes = placement.assigned(self.name, session)
        placement.require(self.name, provider, nodes, model.path, allow_cpu_nodes=options["allow_cpu_nodes"])
        hardware = [f"{each.device.vendor} {each.device.type.name}".strip() for each in chosen]
        return OrtExecutable(
            self.name,
            session,
            dict(chosen[0].ep_metadata).get("FULL_DEVICE_NAME") or ", ".join(hardware),
            computed,
            {owner: package_version(package) or "unknown" for owner in package_owners(package)[:1]},
            {"provider": provider, "devices": hardware},
        )

    def _package(self) -> str:
        """The import name of this member's package.

        Raises:
            BackendUnavailable: the name has no member, or its package is no longer installed.
        """
        installed = plugin_packages.installed()
        family, _, member = self.name.partition(":")
        if member in installed:
            return installed[member]
        known = did_you_mean(member, installed) if installed else "; none is installed"
        raise BackendUnavailable(
            self.name,
            f"{family!r} stands for the installed plugin execution providers: use {family}:NAME{known}",
            "Install a package with get_ep_name and get_library_path, such as onnxruntime-ep-openvino.",
        )
