"""The devices that OpenVINO compiles for, and the properties and the precision that each gets.

``cpu``, ``gpu.1`` and ``npu`` are plugins of OpenVINO. ``auto`` selects from several and ``hetero:...`` divides a model
between them. GPUs and NPUs are written from the documentation: none was available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isorun.plugin import BackendFailed, BackendUnavailable, InvalidOption, cpu_flags, cpu_name, did_you_mean

if TYPE_CHECKING:
    import openvino

FORMS = ("cpu", "gpu", "gpu.N", "npu", "auto", "auto:DEVICES", "hetero:DEVICES")
UNVERIFIED = ("gpu", "gpu.N", "npu")

_PRECISION, _PER_DEVICE = "INFERENCE_PRECISION_HINT", "DEVICE_PROPERTIES"
_THREADS = "INFERENCE_NUM_THREADS"
# The precision to what the device must be capable of, and the property's value.
_CAPABILITIES = {"fp32": ("FP32", "f32"), "bf16": ("BF16", "bf16"), "fp16": ("FP16", "f16"), "int8": ("INT8", "")}
# The kernels of each kind that a compiled model keeps for shapes that it has run. OpenVINO's default is 5000: in int8
# every dense layer has one for each length, 2.8 MiB a length for MiniLM, up to 1.7 GiB after 500 lengths. With 300 it
# stays below 0.5 GiB. Making a kernel again costs little: requests whose lengths all differ, one at a time, need 4 to
# 10 % more processor time, and batches of 64 callers no more than they vary (2026.4.1, Zen 4).
_KERNELS = 300
_RESERVED = {
    _PRECISION: "precision",
    "INFERENCE_NUM_THREADS": "threads",
    "DEVICE_ID": "device",
    "MULTI_DEVICE_PRIORITIES": "device",
}


class Target:
    """What a model is compiled for.

    Args:
        device: the session's device, in canonical form.

    Attributes:
        device: in OpenVINO's words.
        hints: the value of ``INFERENCE_PRECISION_HINT`` for each device.

    Raises:
        BackendUnavailable: a device is not in this machine, or does not compute in the precision.
    """

    def __init__(self, name: str, core: openvino.Core, device: str, precision: str) -> None:
        self._name, self._core = name, core
        self.device = device.upper()
        plugin, self._is_list = self.device.partition(":")[0], device == "auto" or ":" in device
        self._plugins = [plugin] if self._is_list else []
        self.hints: dict[str, str] = {}
        refusals = []
        for member in members(name, core, device):
            try:
                self.hints[member] = self._hint(member, precision)
            except BackendUnavailable as error:
                if device != "auto":
                    raise
                refusals.append(error)
                self.device += f"{',' if ':' in self.device else ':'}-{member}"  # not one to select
        if not self.hints:
            raise refusals[0]

    def properties(self, options: Mapping[str, Any], threads: int | None, needed: Mapping[str, str]) -> dict[str, Any]:
        """All properties for compiling, with the caller's own.

        Args:
            threads: of the processor.
            needed: those that the model needs on the processor, unless the caller has others.

        Raises:
            InvalidOption: none of the devices has one of the caller's, or it is another argument of the session.
        """
        own = self._validated(options)
        by_device = {}
        defaults = {
            # It would bind the threads of every model to the first cores, so that two models share them.
            "ENABLE_CPU_PINNING": False,
            "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS,
            **needed,
        }
        for device, hint in self.hints.items():
            by_device[device] = {
                "PERFORMANCE_HINT": "LATENCY",
                **(defaults if device == "CPU" else {}),
                **own.get(device, {}),
                _PRECISION: hint,
                **({_THREADS: threads} if device == "CPU" else {}),
            }
        if not self._is_list:
            return by_device[self.device]
        return {"PERFORMANCE_HINT": "LATENCY", **own.get(self._plugins[0], {}), _PER_DEVICE: by_device}

    def check(self, compiled: openvino.CompiledModel) -> dict[str, str]:
        """The precision of each device that runs a compiled model now; raises ``BackendFailed`` if it is not what was
        requested."""
        if self._is_list:
            reported = compiled.get_property(_PER_DEVICE)
            actual = {device: properties[_PRECISION].to_string() for device, properties in reported.items()}
        else:
            actual = {self.device: compiled.get_property(_PRECISION).to_string()}
        for device, precision in actual.items():
            if precision != self.hints.get(device, precision):
                requested = self.hints[device]
                raise BackendFailed(f"{self._name} computes in {precision} instead of the requested {requested}")
        return actual

    def has_one_thread(self, compiled: openvino.CompiledModel) -> bool:
        """Whether the processor runs a compiled model in one thread. It has no more than cores that the process may use
        when the model is compiled, whatever was requested."""
        if self._is_list:
            threads = [device.get(_THREADS) for device in compiled.get_property(_PER_DEVICE).values()]
        else:
            threads = [compiled.get_property(_THREADS)] if self.device == "CPU" else []
        return 1 in threads

    def unrounded(self, compiled: openvino.CompiledModel) -> tuple[str, ...]:
        """The types of activations that dense layers whose weights are integers multiply as they are, on the processor.

        It rounds those in fp32 to 8 bits unless told not to, and no others (2026.4.1)."""
        if self.device != "CPU":
            return ()
        return ("bf16", "f16") if compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") else ("bf16", "f16", "f32")

    def _hint(self, device: str, precision: str) -> str:
        """The precision of whatever the graph does not compute in integers."""
        available = self._core.get_property(device, "OPTIMIZATION_CAPABILITIES")
        computes = [name for name, (capability, _) in _CAPABILITIES.items() if capability in available]
        if precision not in computes:
            what = "this processor" if device == "CPU" else f"the device {device.lower()}"
            problem = f"{what} has no {precision} arithmetic (supported: {', '.join(computes)})"
            raise BackendUnavailable(self._name, problem, "Choose a supported precision, or another device.")
        if precision == "int8":
            if device == "CPU":
                precision = "bf16" if "bf16" in computes and multiplies_bf16_faster() else "fp32"
            else:
                precision = "fp16" if "fp16" in computes else "fp32"
        return _CAPABILITIES[precision][1]

    def _validated(self, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The caller's own properties, by the devices and the plugins that have them."""
        if not options:
            return {}  # listing the supported properties takes as long as loading a small model
        writable = {device: self._writable(device) for device in (*self.hints, *self._plugins)}
        own: dict[str, dict[str, Any]] = {device: {} for device in writable}
        for key, value in options.items():
            if key == _PER_DEVICE:
                continue
            self._require(key, set().union(*writable.values()))
            for device, known in writable.items():
                if key in known:
                    own[device][key] = value
        for device, properties in options.get(_PER_DEVICE, {}).items():
            if device not in self.hints:
                problem = (
                    f"{_PER_DEVICE}: {device!r} is not a device of {self.device}{did_you_mean(device, self.hints)}"
                )
                raise InvalidOption(self._name, "properties", problem)
            for key in properties:
                self._require(key, writable[device])
            own[device] |= properties
        return own

    def _writable(self, device: str) -> set[str]:
        supported = dict(self._core.get_property(device, "SUPPORTED_PROPERTIES"))
        return {key for key, access in supported.items() if access != "RO" and key not in _RESERVED}

    def _require(self, key: str, writable: set[str]) -> None:
        if key in _RESERVED:
            problem = f"the property {key} is reserved. Use {_RESERVED[key]}= instead"
            raise InvalidOption(self._name, "properties", problem)
        if key not in writable:
            raise InvalidOption(self._name, "properties", f"unknown property {key!r}{did_you_mean(key, writable)}")


def members(name: str, core: openvino.Core, device: str) -> list[str]:
    """The plugins' devices that a device in canonical form stands for: for ``auto``, all in this machine. Raises
    ``BackendUnavailable`` if one is not in this machine."""
    if device == "cpu":
        return ["CPU"]  # without loading the plugins of others, which load drivers
    available = core.available_devices
    if device == "auto":
        return list(available)
    known = {*available, *(f"{first}.0" for first in available), *(first.removesuffix(".0") for first in available)}
    requested = device.upper().rpartition(":")[2].split(",")
    for member in requested:
        if member not in known:
            raise BackendUnavailable(
                name,
                f"OpenVINO finds no device {member.lower()!r} in this machine (available: "
                f"{', '.join(available).lower()})",
                "Choose one of those, or install the driver of the device.",
            )
    return requested


def accelerators(core: openvino.Core, devices: Sequence[str]) -> tuple[str, ...]:
    """The names of those devices that are no processors."""
    return tuple(str(core.get_property(device, "FULL_DEVICE_NAME")) for device in devices if device != "CPU")


def multiplies_bf16_faster() -> bool:
    """Whether bf16, if it is there, is faster than fp32: on Intel only with AMX (docs/runtime-faults.md)."""
    return "Intel" not in cpu_name() or "amx_bf16" in cpu_flags()
