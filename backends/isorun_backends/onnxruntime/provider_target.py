"""A provider on its devices, from a plugin library or compiled into ONNX Runtime: how a session gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isorun.plugin import BackendUnavailable, cpu_name

if TYPE_CHECKING:
    import onnxruntime

ANY = "any"
"""The device for whichever the provider offers."""
_PCI_VENDORS = {
    0x1002: "AMD",
    0x10DE: "NVIDIA",
    0x14C3: "MediaTek",
    0x17CB: "Qualcomm",
    0x1EED: "Huawei",
    0x8086: "Intel",
}


@dataclass(frozen=True)
class Target:
    """A provider on the devices that a session uses.

    Attributes:
        provider: ONNX Runtime's name of it.
        device: the hardware's name, for reports.
        hardware: the vendor and the kind of each device.
        versions: of the package that provides it, and of the provider itself.
        ep_devices: ONNX Runtime's devices of a plugin; empty for a provider that is compiled in.
    """

    provider: str
    device: str
    hardware: Sequence[str]
    versions: Mapping[str, str]
    ep_devices: Sequence[onnxruntime.OrtEpDevice] = ()

    @property
    def identity(self) -> list[Any]:
        """What tells it from another provider or device."""
        described = [
            (device.device.vendor_id, device.device.device_id, dict(device.device.metadata), dict(device.ep_metadata))
            for device in self.ep_devices
        ]
        return [self.provider, self.device, *described]

    def add(self, ort_options: onnxruntime.SessionOptions, provider_options: Mapping[str, str]) -> list[Any]:
        """Add it to session options, or return the ``providers`` argument of the session."""
        if not self.ep_devices:
            return [(self.provider, dict(provider_options))]
        ort_options.add_provider_for_devices(list(self.ep_devices), dict(provider_options))
        return []


def of_plugin(
    name: str,
    offered: Sequence[onnxruntime.OrtEpDevice],
    device: str,
    package: Mapping[str, str],
    *,
    first: bool = False,
) -> Target:
    """A plugin's provider.

    Args:
        offered: the devices that the plugin offers here.
        first: whether it gets the first device alone, rather than all of that kind.

    Raises:
        BackendUnavailable: it offers none of that kind.
    """
    chosen = [candidate for candidate in offered if device in (ANY, candidate.device.type.name.lower())]
    if not chosen:
        kinds = sorted({candidate.device.type.name.lower() for candidate in offered})
        raise BackendUnavailable(name, f"it has no device {device!r} here", f"Choose one of {', '.join(kinds)}.")
    chosen = chosen[:1] if first else chosen
    main = chosen[0]
    versions = {**package, main.ep_name: dict(main.ep_metadata).get("version", "unknown")}
    return Target(main.ep_name, _device_name(main), [_hardware(used) for used in chosen], versions, chosen)


def _hardware(device: onnxruntime.OrtEpDevice) -> str:
    """As ``NVIDIA GPU (10de:2330)``. On Linux, ONNX Runtime knows a card's PCI numbers but not its vendor's name."""
    known = device.device
    vendor, kind = known.vendor or _PCI_VENDORS.get(known.vendor_id, ""), known.type.name
    numbers = f"({known.vendor_id:04x}:{known.device_id:04x})" if kind == "GPU" and known.device_id else ""
    return " ".join(filter(None, (vendor, kind, numbers)))


def _device_name(device: onnxruntime.OrtEpDevice) -> str:
    """As the provider names it, otherwise of a processor its own name: ONNX Runtime knows only its vendor."""
    named = dict(device.ep_metadata).get("FULL_DEVICE_NAME")
    return named or (cpu_name() if device.device.type.name == "CPU" else _hardware(device))
