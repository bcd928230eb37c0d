"""Checks of reports: precision against the numerical error, the device against the system, placement against the model,
versions against what is installed."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from isorun.plugin import registry
from isorun.system.hardware import DEVICE_FILES, cpu_name
from isorun.system.process_usage import open_files
from isorun.types import devices
from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.formulas import one_operator
from isorun_conformance.precisions import ERRORS
from isorun_conformance.sample_models import Dense, SampleModel, dense, of_size

_NAMES = {
    "Softmax": ("softmax",),
    "Transpose": ("transpose", "permut", "shuffle", "reorder", "move"),
    "MatMul": (
        *("matmul", "gemm", "fullyconnected", "innerproduct", "matrixmultipl", "einsum", "addmm", "linear", "dense"),
        *("dot", "conv", "sgemv", "bmm"),
    ),
}
"""Parts of the names that runtimes have for an operator."""
_OF_SEVERAL = ("foreignnode", "myelin", "subgraph")
"""Parts of the names of what replaces several operators."""
_AROUND_ONE = 8
"""The operators that a runtime may make of one: conversions of layout or type before and after it."""
_OF_ENCODERS = ("int8",)
_BY_WIDTH = ("int8", "bf16", "fp16", "tf32", "fp32", "fp64")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


class Reports(Checks):
    """What a report contains, compared with what can be measured from outside."""

    @proves("true precision")
    def test_requested_precision_is_reported(self, precision: str) -> None:
        with self.under_test.open(self._product(precision), precision=precision) as session:
            reported = session.provenance.precision.split("+")
        assert precision in reported, f"requested {precision}, reports {'+'.join(reported)}"
        narrower = [narrow for narrow in reported if _width(narrow) < _width(precision)]
        assert not narrower, f"requested {precision}, reports {'+'.join(narrower)} as well"

    @proves("true precision")
    def test_error_matches_the_reported_precision(self, precision: str) -> None:
        if precision not in ERRORS:
            pytest.skip(f"the suite does not know the rounding error of {precision}")
        minimum, maximum = ERRORS[precision][0], ERRORS[self.under_test.capabilities.tolerance(precision)][1]
        dynamic = self.under_test.capabilities.dynamic_shapes
        # Weights of a million numbers are worth a shorter type. In fewer bits, errors grow with the number of terms.
        names = ("one-node", "wide-node") if precision in ("fp32", "fp64") else ("one-node",)
        for model in (self._product(precision, name, dynamic=dynamic) for name in names):
            with self.under_test.open(model, precision=precision, padding="keep") as session:
                for seed, rows in enumerate((None, 64, 1, None)):
                    feeds = model.feeds(seed, rows=rows) if isinstance(model, Dense) and dynamic else model.feeds(seed)
                    if "attention_mask" in feeds:
                        feeds["attention_mask"][...] = 1
                    (output, *_), (exact, *_) = (
                        session.run(None, feeds),
                        self.under_test.expected(model, feeds).values(),
                    )
                    error = float(np.sqrt(np.mean((output - exact) ** 2) / np.mean(exact**2)))
                    assert minimum <= error <= maximum, (
                        f"reports {precision}, but did not compute {model} in {precision}: the relative error (root "
                        f"mean square) is {error:.1e}, expected {minimum:.0e} to {maximum:.0e}"
                    )

    def _product(self, precision: str, name: str = "one-node", *, dynamic: bool = False) -> SampleModel:
        """A single product; a BERT for the precisions that isorun prepares only encoders for."""
        encoder = precision in _OF_ENCODERS
        return self.under_test.encoder("bert-2x128") if encoder else dense(name, dynamic=dynamic)

    @proves("true device")
    def test_reported_device_is_in_this_machine(self, device: str) -> None:
        model = dense()
        with self.under_test.open(model, device=device) as session:
            session.run(None, model.feeds())
            reported = session.provenance.device
        assert isinstance(reported, str)
        assert reported.strip(), "reports no device"
        kinds = set(devices.kinds(device))
        known = [cpu_name()] if kinds == {"cpu"} else _nvidia_names() if kinds == {"cuda"} else []
        fits = any(_plain(name) in _plain(reported) or _plain(reported) in _plain(name) for name in known)
        assert fits or not known, f"requested {device!r}, reports {reported!r}; this machine has {' and '.join(known)}"

    @proves("true device")
    def test_device_files_are_open(self, device: str) -> None:
        kinds = devices.kinds(device)
        files = DEVICE_FILES.get(kinds[0]) if len(kinds) == 1 else None
        if files is None:
            pytest.skip(
                f"{DOES_NOT_APPLY}: the device is the CPU"
                if kinds == ("cpu",)
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
    def test_operators_are_those_of_the_model(self) -> None:
        """A model of one operator reports that one, by the name that some runtime has for it, and few more."""
        self.under_test.require("placement" in self.under_test.capabilities.reports, "a report of placement")
        models = {**{name: one_operator(name) for name in ("Softmax", "Transpose")}, "MatMul": dense("one-node")}
        for operator, model in models.items():
            with self.under_test.open_or_skip(model) as session:
                operators = session.provenance.operators
            reported = [name for by_name in operators.values() for name in by_name]
            plain = "".join(character for character in " ".join(reported).lower() if character.isalpha())
            assert any(word in plain for word in (*_NAMES[operator], *_OF_SEVERAL)), (
                f"for a model of one {operator}, it reports the operators {', '.join(reported) or 'none'}"
            )
            total = sum(count for by_name in operators.values() for count in by_name.values())
            assert total <= _AROUND_ONE, f"for a model of one {operator}, it reports {total} operators"

    @proves("true placement")
    def test_operators_are_grouped_by_device_or_runtime(self, device: str) -> None:
        self.under_test.require("placement" in self.under_test.capabilities.reports, "a report of placement")
        with self.under_test.open(dense(), device=device) as session:
            provenance = session.provenance
        kinds = devices.kinds(device)
        name, package = self.under_test.name, self.under_test.capabilities.package
        # A member of a family is a runtime: `openvino` of `ort-ep:openvino`.
        runtimes = [name, name.rpartition(":")[2], name.removeprefix("ort-"), package or name, *provenance.versions]
        # A GPU's runtime may leave some operators to the CPU, but not the other way round.
        accelerators = ["gpu", "npu"] if "auto" in kinds else ["gpu"] if "cuda" in kinds else []
        known = ["cpu", *kinds, *accelerators, *runtimes]
        for group in provenance.operators:
            fits = any(_letters(word) in _letters(group) for word in known)
            assert fits, f"on {device!r}, it reports operators of {group!r}, which is neither a device nor a runtime"
            rest = _letters(group).replace(_letters(name.partition(":")[2]), "")  # WebGPU runs on processors too
            misplaced = [word for word in ("cuda", "gpu", "npu") if word in rest and kinds == ("cpu",)]
            assert not misplaced, f"on {device!r}, it reports operators of {group!r}"

    @proves("true placement")
    def test_report_is_the_same_before_and_after_runs(self) -> None:
        """Also where another model is compiled later. No run after the report is wrong."""
        model = self.under_test.encoder()
        reports = []
        for runs in (0, 2):
            with self.under_test.open(model, padding="keep") as session, ExitStack() as stack:
                for seed in range(runs):
                    session.run(None, model.feeds(seed))
                    stack.enter_context(self.under_test.open(dense(seed=seed)))
                provenance = session.provenance
                self.under_test.assert_accurate(model, session, model.feeds(), what="a run after report()")
                reports.append((provenance.device, provenance.precision, provenance.operators, provenance.versions))
        assert reports[0] == reports[1], (
            f"before any run, it reports {reports[0]}, and after two runs and beside other models {reports[1]}"
        )

    @proves("true device times")
    def test_device_times_are_plausible(self) -> None:
        model = dense("heavy")
        with self.under_test.open(model) as session:
            session.run(None, model.feeds())
            started = time.perf_counter()
            times = session.device_times(model.feeds(), 20)
            milliseconds = (time.perf_counter() - started) * 1e3
            self.under_test.assert_accurate(model, session, model.feeds(), what="a run after device_times()")
        if times is None:
            pytest.skip("not declared: times by a device's own events")
        kind = f"{times.dtype}{list(times.shape)}" if isinstance(times, np.ndarray) else type(times).__name__
        assert kind == "float64[20]", f"device_times() must return float64[20] for 20 runs, got {kind}"
        assert np.isfinite(times).all(), "a device time is not finite"
        assert times.min() > 1e-4, f"a run took {times.min():g} ms by device_times(), less than a processor's clock"
        assert times.sum() <= milliseconds, (
            f"20 runs took {times.sum():g} ms by device_times(), but only {milliseconds:g}"
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
        installed = registry.version(self.under_test.backend)
        if installed is None:
            pytest.skip("not declared: a package")
        candidates = tuple(installed.split(" or "))  # several distributions may provide the package
        assert any(reported.startswith(candidates) for reported in versions.values()), (
            f"{self.under_test.capabilities.package} {installed} is installed, but it reports {dict(versions)}"
        )
        own = versions.get(self.under_test.capabilities.package or "", installed)
        assert own.startswith(candidates), f"{installed} is installed, but it reports {own} under the package's name"

    @proves("provenance")
    def test_provenance_is_plain_data_about_the_model(self) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            provenance = session.provenance
        assert provenance.backend == self.under_test.name
        assert provenance.dialect in self.under_test.capabilities.dialects
        assert provenance.fused["SelfAttention"] == 2
        assert json.loads(json.dumps(provenance.as_dict()))["fingerprint"] == provenance.fingerprint
        assert str(provenance).startswith("backend")
        self.under_test.about = {
            "contract": self.under_test.backend.contract,
            **{key: provenance.as_dict()[key] for key in ("device", "threads", "versions", "environment")},
        }


def _width(precision: str) -> int:
    return _BY_WIDTH.index(precision) if precision in _BY_WIDTH else -1


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _nvidia_names() -> list[str]:
    """The GPUs that NVIDIA's driver lists; none without that driver."""
    names = []
    for information in _NVIDIA.glob("*/information"):
        pairs = dict(line.partition(":")[::2] for line in information.read_text(encoding="utf-8").splitlines())
        names.append(pairs.get("Model", "").strip())
    return [name for name in names if name]
