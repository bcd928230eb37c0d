"""The devices of a backend: what reaches it, and what is known of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import backends
import isorun
import tiny
from isorun.errors import BackendUnavailable
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import listing, registry
from isorun.plugin.backend import Backend, Executable
from isorun.types import Availability, Capabilities, CompileConfig, LoweredModel
from isorun_backends.reference import Reference

FORMS = ("cpu", "gpu.N", "npu", "auto:DEVICES")


class Several(Reference):
    """The reference evaluator under the names of several devices."""

    capabilities = replace(
        Reference.capabilities, devices=FORMS, unverified=("npu",), dynamic_shapes=True, data_dependent_shapes=True
    )
    configs: list[CompileConfig] = []  # noqa: RUF012

    def accelerators(self, device: str) -> tuple[str, ...]:
        if device == "npu":
            raise ValueError("the driver is upset")
        if device == "gpu.2":
            raise BackendUnavailable(self.name, "no device 'gpu.2' (available: gpu.0)", "Choose that.")
        return () if device in ("cpu", "auto:cpu") else ("A GPU",)

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        self.configs.append(config)
        return super().compile(model, replace(config, device="cpu"))


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    Several.configs.clear()
    with backends.registered(several=Several):
        yield


@pytest.mark.parametrize(
    ("device", "expected", "accelerators"),
    [
        (None, "cpu", ()),
        ("GPU.1", "gpu.1", ("A GPU",)),
        ("Auto: GPU.0, cpu", "auto:gpu.0,cpu", ("A GPU",)),
        ("AUTO:CPU", "auto:cpu", ()),
    ],
)
def test_a_backend_gets_a_canonical_device(bert, device, expected, accelerators):
    with isorun.Session(bert, "several", device=device) as session:
        session.run(None, tiny.feeds(8, 32))
        removed = session.provenance.details["padding"]["removed"]
    assert {(config.device, config.accelerators) for config in Several.configs} == {(expected, accelerators)}
    assert removed.startswith("never: not known to pay") == bool(accelerators)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"'several'.*does not support device 'gpu' \(supported: cpu, gpu\.N, npu, auto:DEVICES\)"),
        ("hetero:cpu", "does not support device 'hetero:cpu'"),
        ("npu", r"its accelerators\(\) raises ValueError: the driver is upset"),
        ("gpu.2", r"available: gpu\.0"),
    ],
)
def test_rejects_a_device_before_compiling(bert, device, message):
    with pytest.raises(BackendUnavailable, match=message):
        isorun.Session(bert, "several", device=device)
    assert not Several.configs


def test_unverified_devices_are_described():
    (description,) = listing.describe("several")
    assert (description.capabilities.devices, description.capabilities.unverified) == (FORMS, ("npu",))


def test_unverified_devices_are_devices():
    class Wrong(Several):
        capabilities = replace(Several.capabilities, unverified=("cuda",))

    with pytest.raises(isorun.InvalidArgument, match=r"`capabilities.unverified`: unknown value 'cuda'"):
        registry.register("wrong", Wrong)


@pytest.mark.parametrize(
    ("names", "device", "expected"),
    [((), "cpu", ()), (("A GPU",), "cpu", ()), (("A GPU",), "gpu", ("A GPU",)), ((), "npu", ("npu",))],
)
def test_the_default_knows_those_of_its_availability(names: tuple[str, ...], device: str, expected: Any) -> None:
    class Plain(Backend):
        capabilities = Capabilities(("primitive",))

        def probe(self) -> Availability:
            return Availability(True, devices=names)

        def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
            raise AssertionError

    assert Plain("plain").accelerators(device) == expected


def test_a_worker_knows_the_devices_of_its_environment():
    worker = Worker(environments.current())
    try:
        backend = worker.get("openvino")
        assert backend.accelerators("hetero:cpu") == ()
        with pytest.raises(BackendUnavailable, match=r"'gpu\.77'.*available: "):
            backend.accelerators("gpu.77")
    finally:
        worker.close()
