"""Any plugin execution provider of ONNX Runtime that is installed, as ``ort-ep:NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isorun.errors import BackendUnavailable, did_you_mean
from isorun.plugin.backend import Backend
from isorun.system.packages import package_owners, package_version
from isorun.types import Availability, Capabilities, CompileConfig, Finding, LoweredModel, RuntimeReport
from isorun_backends.onnxruntime import placement, plugins, precision
from isorun_backends.onnxruntime.session import OPTIONS, OrtExecutable, mapping, open_session, options, versions

if TYPE_CHECKING:
    import onnxruntime

_ANY = "any"


class OrtEp(Backend):
    """A provider of which nothing is known but its library: what it computes in is measured, and is what was asked for
    or an error."""

    capabilities = Capabilities(
        dialects=("primitive", "onnx"),
        precisions=("fp32", "tf32", "fp16", "bf16"),
        devices=(_ANY, "cpu", "gpu", "npu"),
        options={
            **OPTIONS,
            "provider": "a mapping of the provider's own options; ONNX Runtime does not say which it knows",
            placement.ALLOW: placement.MEANING,
        },
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement", "precision"),
    )

    @classmethod
    def members(cls) -> tuple[str, ...]:
        return tuple(plugins.installed())

    def availability(self) -> Availability:
        """Loads the provider's library, since nothing else can tell whether it has a device here."""
        runtime = super().availability()
        if not runtime.ok:
            return runtime
        try:
            plugins.devices(self.name, self._package())
        except BackendUnavailable as error:
            return Availability(ok=False, reason=error.reason, remedy=error.remedy)
        return Availability(ok=True)

    def diagnose(self) -> list[Finding]:
        """The package's library does not load, or it has no device here."""
        package = self._package()
        owners = package_owners(package)
        try:
            plugins.devices(self.name, package)
        except BackendUnavailable as error:
            subject, why = f"the backend {self.name}", "its library was loaded, and asked for its devices"
            if error.__cause__ is not None:
                together = " ".join(["onnxruntime", *owners])
                return [Finding(subject, "error", error.reason, why, f"pip install --upgrade {together}")]
            gone = f"pip uninstall -y {' '.join(owners)}   # or run it where its hardware is"
            return [Finding(subject, "warning", error.reason, why, gone)]
        return []

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtEpExecutable:
        found = list(plugins.devices(self.name, self._package()))
        chosen = [each for each in found if config.device in (_ANY, each.device.type.name.lower())]
        if not chosen:
            there = sorted({each.device.type.name.lower() for each in found})
            raise BackendUnavailable(
                self.name, f"it offers no device {config.device!r} here", f"It offers {' and '.join(there)}."
            )
        given = mapping(self.name, config, "provider")

        def providers(made: onnxruntime.SessionOptions) -> list[Any]:
            made.add_provider_for_devices(chosen, given)
            return []

        computes = precision.measure(chosen[0].ep_name, providers)
        if computes != config.precision:
            raise BackendUnavailable(
                self.name,
                f"it was asked for {config.precision} and computes in {computes}",
                "Ask for that, or give the provider the options of its own that change it: options={'provider': ...}.",
            )
        made = options(self.name, config)
        session = open_session(self.name, model, made, providers(made))
        executable = OrtEpExecutable(self.name, session, chosen, self._package(), computes)
        placement.check(self.name, chosen[0].ep_name, executable, model, config)
        return executable

    def _package(self) -> str:
        """The package to import for the member that this name has.

        Raises:
            BackendUnavailable: it has none, or it is no longer installed.
        """
        there = plugins.installed()
        family, _, member = self.name.partition(":")
        if member in there:
            return there[member]
        raise BackendUnavailable(
            self.name,
            f"{family!r} stands for the plugin execution providers that are installed; name one, as {family}:NAME"
            f"{did_you_mean(member, there) if there else '; there is none'}",
            "A package with get_ep_name and get_library_path is one: pip install onnxruntime-ep-openvino, say.",
        )


class OrtEpExecutable(OrtExecutable):
    """A model loaded on the devices of a plugin provider."""

    def __init__(self, name: str, session: Any, devices: Sequence[Any], package: str, computes: str) -> None:
        super().__init__(name, session)
        self._devices = devices
        self._package = package
        self._computes = computes

    def report(self) -> RuntimeReport:
        hardware = [f"{each.device.vendor} {each.device.type.name}".strip() for each in self._devices]
        about = {key: str(value) for key, value in self._devices[0].ep_metadata.items()}
        return RuntimeReport(
            device=about.get("FULL_DEVICE_NAME") or ", ".join(hardware),
            precision=self._computes,
            operators=self.operators(),
            versions={**versions(), **_version(self._package)},
            details={"provider": self._devices[0].ep_name, "devices": hardware},
        )


def _version(package: str) -> dict[str, str]:
    return {owner: package_version(package) or "unknown" for owner in package_owners(package)[:1]}
