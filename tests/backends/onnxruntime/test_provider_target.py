"""The devices of a plugin provider, by name."""

from enum import Enum
from types import SimpleNamespace

import pytest

from isorun_backends.onnxruntime.provider_target import ANY, of_plugin


class Kind(Enum):
    """As ONNX Runtime's type of a device, of which it makes no instances for absent hardware."""

    CPU = 0
    GPU = 1


def offered(kind: Kind, vendor: str, vendor_id: int, device_id: int) -> SimpleNamespace:
    device = SimpleNamespace(type=kind, vendor=vendor, vendor_id=vendor_id, device_id=device_id, metadata={})
    return SimpleNamespace(ep_name="Mine", ep_metadata={}, device=device)


@pytest.mark.parametrize(
    ("vendor", "numbers", "name"),
    [
        ("", (0x10DE, 0x2330), "NVIDIA GPU (10de:2330)"),
        ("Contoso", (0x10DE, 0x2330), "Contoso GPU (10de:2330)"),
        ("", (0x1234, 0x1), "GPU (1234:0001)"),
        ("", (0, 0), "GPU"),
    ],
)
def test_a_card_has_its_vendor_and_numbers(vendor: str, numbers: tuple[int, int], name: str) -> None:
    target = of_plugin("ort-ep:mine", [offered(Kind.GPU, vendor, *numbers)], ANY, {})
    assert target.device == name
    assert target.hardware == [name]


def test_a_processor_has_no_numbers() -> None:
    target = of_plugin("ort-ep:mine", [offered(Kind.CPU, "Contoso", 7, 7)], "cpu", {})
    assert target.hardware == ["Contoso CPU"]
