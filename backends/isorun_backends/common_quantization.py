"""Models that are quantized when they are given, in runtimes that compute them less exactly unless told otherwise."""

from __future__ import annotations

import platform

from isorun.plugin import LoweredModel, cpu_flags, has_vnni


def saturates(model: LoweredModel) -> bool | None:
    """Whether sums of a model's 8-bit products may saturate on this processor: on x86 without VNNI, unless isorun has
    quantized the model, to weights of 7 bits. ``None`` where it is not known, as on Windows.
    """
    if not model.info.quantized or "int8" in model.notes or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return not has_vnni() if cpu_flags() else None


def openvino_properties(model: LoweredModel, precision: str) -> dict[str, str]:
    """OpenVINO's properties for the processor that keep its defaults from rounding more than the model does (2026.4.1).

    Dense layers with weights in 8 or 4 bits round their activations to 8 bits, whatever precision is requested. QDQ is
    computed in 8 bits, even where sums of the products saturate.
    """
    saturating = saturates(model)
    exact = saturating or (saturating is None and precision != "int8")
    return {
        **({"LP_TRANSFORMS_MODE": "NO"} if exact else {}),
        **({"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"} if exact or precision != "int8" else {}),
    }
