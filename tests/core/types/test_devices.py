"""Names of devices: which are valid, and what they stand for."""

import pytest

from isorun.types.devices import DEVICES, canonical, examples, kinds


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("CPU", "cpu"),
        (" gpu ", "gpu"),
        ("GPU.1", "gpu.1"),
        ("gpu.10", "gpu.10"),
        ("Auto", "auto"),
        ("AUTO:GPU.1, CPU", "auto:gpu.1,cpu"),
        ("hetero:cpu", "hetero:cpu"),
        ("hetero:cpu,CPU", "hetero:cpu"),
    ],
)
def test_a_device_has_one_spelling(requested, expected):
    assert canonical(requested, DEVICES) == expected
    assert canonical(expected, DEVICES) == expected


@pytest.mark.parametrize(
    "requested",
    [
        *("", "tpu", "gpu1", "gpu:1", "gpu.", "gpu.01", "gpu.N", "gpu.-1", "cpu.0", "npu.1", "hetero", "hetero:"),
        *("auto:", "auto:gpux", "auto:cpu,", "auto:auto", "auto:hetero:cpu", "auto:DEVICES", "auto:-gpu", "multi:cpu"),
        *(3, None),
    ],
)
def test_rejects_other_names(requested):
    assert canonical(requested, DEVICES) is None


def test_accepts_only_what_is_supported():
    assert canonical("gpu.1", ("gpu",)) is None
    assert canonical("gpu", ("gpu.N",)) is None
    assert canonical("auto:cpu", ("auto", "cpu")) is None
    assert canonical("hetero:gpu,cpu", ("cpu", "hetero:DEVICES")) is None
    assert canonical("ANY", ("any", "cpu")) == "any"


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", ("cpu",)), ("gpu.1", ("gpu",)), ("auto", ("auto",)), ("hetero:gpu.1,cpu", ("gpu", "cpu"))],
)
def test_kinds(device, expected):
    assert kinds(device) == expected


def test_examples_are_valid():
    chosen = list(examples(DEVICES))
    assert chosen == ["cpu", "gpu", "cuda", "npu", "auto", "auto:cpu", "hetero:cpu"]
    assert [canonical(name, DEVICES) for name in chosen] == chosen
