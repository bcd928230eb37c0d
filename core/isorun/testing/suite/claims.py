"""Checks that provenance is true: precision by what the numbers show, the device by what the system knows, placement
by what the model holds, versions by what is installed."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from isorun.system.hardware import cpu_name
from isorun.testing.suite.processes import open_files
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import Sample, dense, of_size
from isorun.testing.suite.subject import Checks

BANDS = {
    "fp64": (0.0, 1e-12),
    "fp32": (0.0, 5e-6),
    "tf32": (5e-5, 1e-3),
    "fp16": (5e-5, 1e-3),
    "bf16": (5e-4, 1e-2),
    "int8": (1e-3, 0.15),
}
"""The relative error (root mean square) of a product of 256 terms whose factors were rounded to each precision. One
rounding to p bits has a relative error of up to 2^-p, 0.6 of that in the root mean square, and both factors have one:
3e-8 for fp32 and its sums, 2e-4 for the 11 bits of fp16 and tf32, 2e-3 for the 8 bits of bf16. fp32 has no least error:
to compute in more than was asked is no lie about the answer. Of int8, the error is that of a BERT's hidden states."""

_OF_ENCODERS = ("int8",)
_WIDER = ("int8", "bf16", "fp16", "tf32", "fp32", "fp64")
_DEVICE_FILES = {"cuda": ("/dev/nvidia",), "gpu": ("/dev/nvidia", "/dev/dri/", "/dev/kfd"), "npu": ("/dev/accel",)}
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class Claims(Checks):
    """What a report says, held against what can be measured from outside."""

    @proves("true precision")
    def test_the_precision_reported_is_the_one_asked_for(self, precision: str) -> None:
        with self.subject.open(self._product(precision), precision=precision) as session:
            reported = session.provenance.precision.split("+")
        assert precision in reported, f"asked for {precision}, it reports {'+'.join(reported)}"
        narrower = [each for each in reported if _rank(each) < _rank(precision)]
        assert not narrower, f"asked for {precision}, it reports {'+'.join(narrower)} as well"

    @proves("true precision")
    def test_the_precision_reported_is_the_one_computed_in(self, precision: str) -> None:
        if precision not in BANDS:
            pytest.skip(f"the suite does not know what rounding to {precision} does")
        model, (least, most) = self._product(precision), BANDS[precision]
        with self.subject.open(model, precision=precision, padding="keep") as session:
            errors = []
            for seed in range(3):
                feeds = model.feeds(seed)
                if "attention_mask" in feeds:
                    feeds["attention_mask"][...] = 1
                (found, *_), (exact, *_) = session.run(None, feeds), self.subject.expected(model, feeds).values()
                errors.append(float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))))
        for error in errors:
            assert least <= error <= most, (
                f"what is reported as {precision} is off by {error:.1e} (relative, root mean square); "
                f"{precision} is off by {least:.0e} to {most:.0e}: it was not computed in {precision}"
            )

    def _product(self, precision: str) -> Sample:
        """A single product; where products are rounded by isorun and not by the runtime, those of a BERT."""
        return self.subject.bert("bert-2x128") if precision in _OF_ENCODERS else dense("one-node")

    @proves("true device")
    def test_the_device_reported_is_one_of_this_machine(self, device: str) -> None:
        model = dense()
        with self.subject.open(model, device=device) as session:
            session.run(None, model.feeds())
            reported = session.provenance.device
            assert isinstance(reported, str)
            assert reported.strip(), "it reports no device"
            if device == "cpu":
                known = [cpu_name()]
            elif device.partition(":")[0] == "cuda":
                known = _nvidia_names()
            else:
                known = []
            fits = any(_plain(name) in _plain(reported) or _plain(reported) in _plain(name) for name in known)
            assert fits or not known, (
                f"asked for {device!r}, it reports {reported!r}; this machine has {' and '.join(known)}"
            )

    @proves("true device")
    def test_what_claims_a_device_holds_it_open(self, device: str) -> None:
        files = _DEVICE_FILES.get(device.partition(":")[0])
        if files is None:
            pytest.skip(
                "does not apply: it is the CPU"
                if device == "cpu"
                else f"nothing outside tells whether {device!r} is in use"
            )
        model = dense()
        with self.subject.open(model, device=device) as session:
            session.run(None, model.feeds())
            assert any(name.startswith(files) for name in open_files()), (
                f"it says that it runs on {device!r}, and holds none of {', '.join(files)} open"
            )

    @proves("true placement")
    def test_every_operator_is_placed(self) -> None:
        """A canned answer would not change with the model."""
        self.subject.require("placement" in self.subject.capabilities.reports, "a report of placement")
        counts = {}
        dynamic = self.subject.capabilities.dynamic_shapes
        for name in ("one-node", "bert-1x32", "bert-2x32"):
            with self.subject.open(of_size(name, dynamic=dynamic), padding="keep") as session:
                placed = session.provenance.operators
            assert all(isinstance(count, int) and count > 0 for ops in placed.values() for count in ops.values())
            counts[name] = sum(count for operators in placed.values() for count in operators.values())
        assert counts["one-node"] >= 1, "a model of one node has no operator in the report"
        assert counts["bert-2x32"] > counts["bert-1x32"] > counts["one-node"], (
            f"the report does not follow the model: {counts} operators"
        )

    @proves("true placement")
    def test_what_is_not_declared_is_not_guessed(self) -> None:
        if "placement" in self.subject.capabilities.reports:
            pytest.skip("does not apply: it declares a report of placement")
        with self.subject.open(dense()) as session:
            assert not session.provenance.operators, (
                "it reports where operators ran, which its capabilities do not declare: add 'placement' to reports, "
                "or leave out what the runtime does not say"
            )

    @proves("true versions")
    def test_versions_are_those_that_are_installed(self) -> None:
        with self.subject.open(dense()) as session:
            versions = session.provenance.versions
        assert versions["isorun"] == version("isorun")
        installed = self.subject.backend.version()
        if installed is None:
            pytest.skip("it declares no package")
        there = tuple(installed.split(" or "))  # of distributions that share the package, any may be the active one
        assert any(reported.startswith(there) for reported in versions.values()), (
            f"{self.subject.capabilities.package} {installed} is installed; it reports {dict(versions)}"
        )

    @proves("provenance")
    def test_provenance_is_plain_data_and_names_the_model(self) -> None:
        model = self.subject.bert()
        with self.subject.open(model) as session:
            provenance = session.provenance
        assert provenance.backend == self.subject.name
        assert provenance.dialect in self.subject.capabilities.dialects
        assert provenance.fused["SelfAttention"] == 2
        assert json.loads(json.dumps(provenance.as_dict()))["fingerprint"] == provenance.fingerprint
        assert str(provenance).startswith("backend")


def _rank(precision: str) -> int:
    return _WIDER.index(precision) if precision in _WIDER else -1


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


def _nvidia_names() -> list[str]:
    """The GPUs that NVIDIA's driver knows; none where there is no such driver."""
    found = []
    for information in _NVIDIA.glob("*/information"):
        pairs = dict(line.partition(":")[::2] for line in information.read_text().splitlines())
        found.append(pairs.get("Model", "").strip())
    return [name for name in found if name]
