"""Checks of reports: precision against the numerical error, the device against the system, placement against the model,
versions against what is installed."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from isorun.system.hardware import cpu_name
from isorun.testing.conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun.testing.conformance.process_usage import open_files
from isorun.testing.conformance.sample_models import SampleModel, dense, of_size

_ERRORS = {
    "fp64": (0.0, 1e-12),
    "fp32": (0.0, 5e-6),
    "tf32": (5e-5, 1e-3),
    "fp16": (5e-5, 1e-3),
    "bf16": (5e-4, 1e-2),
    "int8": (1e-3, 0.15),
}
"""The minimum and maximum relative error (root mean square) of a product of 256 terms in each precision. Rounding to p
bits has a relative error of at most 2^-p, 0.6 of that in the root mean square, and both factors are rounded: 3e-8 for
fp32 and its sums, 2e-4 for the 11 bits of fp16 and tf32, 2e-3 for the 8 bits of bf16. fp32 has no minimum, since a
backend may compute in more than was requested. The error of int8 is that of a BERT's hidden states."""

_OF_ENCODERS = ("int8",)
_BY_WIDTH = ("int8", "bf16", "fp16", "tf32", "fp32", "fp64")
_DEVICE_FILES = {"cuda": ("/dev/nvidia",), "gpu": ("/dev/nvidia", "/dev/dri/", "/dev/kfd"), "npu": ("/dev/accel",)}
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class Reports(Checks):
    """What a report contains, compared with what can be measured from outside."""

    @proves("true precision")
    def test_requested_precision_is_reported(self, precision: str) -> None:
        with self.under_test.open(self._product(precision), precision=precision) as session:
            reported = session.provenance.precision.split("+")
        assert precision in reported, f"requested {precision}, reports {'+'.join(reported)}"
        narrower = [each for each in reported if _width(each) < _width(precision)]
        assert not narrower, f"requested {precision}, reports {'+'.join(narrower)} as well"

    @proves("true precision")
    def test_error_matches_the_reported_precision(self, precision: str) -> None:
        if precision not in _ERRORS:
            pytest.skip(f"the suite does not know the rounding error of {precision}")
        model, (minimum, maximum) = self._product(precision), _ERRORS[precision]
        with self.under_test.open(model, precision=precision, padding="keep") as session:
            for seed in range(3):
                feeds = model.feeds(seed)
                if "attention_mask" in feeds:
                    feeds["attention_mask"][...] = 1
                (found, *_), (exact, *_) = session.run(None, feeds), self.under_test.expected(model, feeds).values()
                error = float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))
                assert minimum <= error <= maximum, (
                    f"reports {precision}, but did not compute in {precision}: the relative error (root mean square) "
                    f"is {error:.1e}, expected {minimum:.0e} to {maximum:.0e}"
                )

    def _product(self, precision: str) -> SampleModel:
        """A single product; a BERT for the precisions that isorun prepares only encoders for."""
        return self.under_test.bert("bert-2x128") if precision in _OF_ENCODERS else dense("one-node")

    @proves("true device")
    def test_reported_device_is_in_this_machine(self, device: str) -> None:
        model = dense()
        with self.under_test.open(model, device=device) as session:
            session.run(None, model.feeds())
            reported = session.provenance.device
        assert isinstance(reported, str)
        assert reported.strip(), "reports no device"
        kind = device.partition(":")[0]
        known = [cpu_name()] if device == "cpu" else _nvidia_names() if kind == "cuda" else []
        fits = any(_plain(name) in _plain(reported) or _plain(reported) in _plain(name) for name in known)
        assert fits or not known, f"requested {device!r}, reports {reported!r}; this machine has {' and '.join(known)}"

    @proves("true device")
    def test_device_files_are_open(self, device: str) -> None:
        files = _DEVICE_FILES.get(device.partition(":")[0])
        if files is None:
            pytest.skip(
                f"{DOES_NOT_APPLY}: the device is the CPU"
                if device == "cpu"
                else f"the suite does not know which files show that {device!r} is in use"
            )
        model = dense()
        with self.under_test.open(model, device=device) as session:
            session.run(None, model.feeds())
            open_ = any(name.startswith(files) for name in open_files())
        assert open_, f"reports that it runs on {device!r}, but has no file open under {', '.join(files)}"

    @proves("true placement")
    def test_placement_follows_the_model(self) -> None:
        self.under_test.require("placement" in self.under_test.capabilities.reports, "a report of placement")
        counts = {}
        dynamic = self.under_test.capabilities.dynamic_shapes
        for name in ("one-node", "bert-1x32", "bert-2x32"):
            with self.under_test.open(of_size(name, dynamic=dynamic), padding="keep") as session:
                operators = session.provenance.operators
            placed = [count for by_name in operators.values() for count in by_name.values()]
            assert all(isinstance(count, int) and count > 0 for count in placed)
            counts[name] = sum(placed)
        assert counts["one-node"] >= 1, "reports no operator for a model of one node"
        assert counts["bert-2x32"] > counts["bert-1x32"] > counts["one-node"], (
            f"the number of operators in the report does not follow the model: {counts}"
        )

    @proves("true placement")
    def test_undeclared_placement_is_not_reported(self) -> None:
        if "placement" in self.under_test.capabilities.reports:
            pytest.skip(f"{DOES_NOT_APPLY}: the backend declares a report of placement")
        with self.under_test.open(dense()) as session:
            assert not session.provenance.operators, (
                "reports where operators ran without declaring it: add 'placement' to capabilities.reports, or omit "
                "what the runtime does not report"
            )

    @proves("true versions")
    def test_installed_versions_are_reported(self) -> None:
        with self.under_test.open(dense()) as session:
            versions = session.provenance.versions
        assert versions["isorun"] == version("isorun")
        installed = self.under_test.backend.version()
        if installed is None:
            pytest.skip("not declared: a package")
        candidates = tuple(installed.split(" or "))  # several distributions may provide the package
        assert any(reported.startswith(candidates) for reported in versions.values()), (
            f"{self.under_test.capabilities.package} {installed} is installed, but it reports {dict(versions)}"
        )

    @proves("provenance")
    def test_provenance_is_plain_data_about_the_model(self) -> None:
        model = self.under_test.bert()
        with self.under_test.open(model) as session:
            provenance = session.provenance
        assert provenance.backend == self.under_test.name
        assert provenance.dialect in self.under_test.capabilities.dialects
        assert provenance.fused["SelfAttention"] == 2
        assert json.loads(json.dumps(provenance.as_dict()))["fingerprint"] == provenance.fingerprint
        assert str(provenance).startswith("backend")


def _width(precision: str) -> int:
    return _BY_WIDTH.index(precision) if precision in _BY_WIDTH else -1


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


def _nvidia_names() -> list[str]:
    """The GPUs that NVIDIA's driver lists; none without that driver."""
    names = []
    for information in _NVIDIA.glob("*/information"):
        pairs = dict(line.partition(":")[::2] for line in information.read_text().splitlines())
        names.append(pairs.get("Model", "").strip())
    return [name for name in names if name]
