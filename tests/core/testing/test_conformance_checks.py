"""Every check of the conformance suite fails a backend with one flaw that the check exists for.

That the checks pass a backend without a flaw is tested in test_conformance_runner.py and tests/backends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import flaws
from flaws import lifetime
from isorun import IsorunError
from isorun.testing import fakes
from isorun.testing.conformance import Conformance


@dataclass(frozen=True)
class Case:
    """A backend with a flaw, the check that fails, and a key word of its message."""

    backend: str
    check: str
    message: str
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


ON_DEVICE = [
    Case("ClaimsDeviceArrays", "output_on_the_device_can_be_fed", "device's memory"),
    Case("CopiesToTheHost", "output_on_the_device_can_be_fed", "got ndarray"),
    Case("ReusesDeviceMemory", "no_later_run_changes_an_output_on_the_device", "is wrong"),
    Case("BindsTheFirstFeed", "binding_of_arrays_on_the_device", "is wrong"),
]
CASES = [
    *ON_DEVICE,
    Case("OtherName", "found_by_name", "__init__"),
    Case("ImportsAtTheTop", "availability_imports_no_runtime", "imports 'onnx'"),
    Case("DialectsAreAString", "capabilities_are_valid", "dialects .*str"),
    Case("UnknownDialect", "capabilities_are_valid", "'primitve'.*primitive"),
    Case("UnknownReport", "capabilities_are_valid", "'temperature'.*placement"),
    Case("NoDevice", "capabilities_are_valid", "devices is empty"),
    Case("UndescribedOption", "options_are_described", "'knob'"),
    Case("NoRemedy", "unavailability_has_a_reason_and_a_remedy", "remedy"),
    Case("SaysTrue", "unavailability_has_a_reason_and_a_remedy", "isinstance"),
    Case("NeverComputes", "available_backend_computes", "it has no device"),
    Case("CompilesNothing", "available_backend_computes", "NoneType"),
    Case("ChangesItsMind", "unavailable_backend_is_refused", "DID NOT RAISE"),
    Case("AlwaysAvailable", "unavailable_without_its_package", "still ok"),
    Case("Rude", "unavailable_without_its_package", "the driver is upset"),
    Case(
        "CountsTheMask",
        "accuracy_in_every_dialect",
        "mask left.*last_hidden",
        {"dialect": "primitive", "outputs": None},
    ),
    Case(
        "TakesQueriesForKeys",
        "accuracy_in_every_dialect",
        "mask none.*pooler_output",
        {"dialect": "primitive", "outputs": ["pooler_output"]},
    ),
    Case("CountsTheMask", "accuracy_in_every_precision", "max_rel", {"precision": "fp32"}),
    Case("CountsTheMask", "accuracy_with_every_mask", "max_rel", {"mask": "left", "padding": "keep"}),
    Case("CountsTheMask", "accuracy_with_every_mask", "max_rel", {"mask": "holes", "padding": "keep"}),
    Case("WrongForOtherShapes", "shapes_may_change_between_runs", "max_rel"),
    Case("RefusesFixedShapes", "model_of_fixed_shapes", "symbolic shapes only"),
    Case("GuessesShapes", "symbolic_model_without_dynamic_shapes_is_refused_or_accurate", "4 x 16.*max_rel"),
    Case("RefusesWithoutReason", "symbolic_model_without_dynamic_shapes_is_refused_or_accurate", "refusal"),
    Case("WrongForWideModels", "models_of_every_size", "bert-4x256", {"size": "bert-4x256"}),
    Case("NotDeterministic", "repeated_run_returns_the_same", "Not equal"),
    Case("IgnoresTheOrder", "requested_outputs_in_the_requested_order", "shapes"),
    Case("ReturnsATuple", "requested_outputs_in_the_requested_order", "tuple"),
    Case("ReturnsAllOutputs", "requested_outputs_in_the_requested_order", "got 2"),
    Case("ReturnsFloat64", "outputs_have_the_declared_types_and_shapes", "float64"),
    Case("ReusesItsMemory", "no_later_run_changes_an_output", "share memory"),
    Case("ChangesItsFeeds", "run_does_not_change_its_feeds", "changed the feed"),
    Case("ReturnsItsFeeds", "no_output_shares_memory_with_a_feed", "'y' shares memory"),
    Case("IgnoresStrides", "feeds_of_any_memory_layout", "is wrong", {"layout": "strided"}),
    Case("IgnoresStrides", "feeds_of_any_memory_layout", "is wrong", {"layout": "reversed"}),
    Case("UsesEveryCore", "one_thread_computes_on_one_core", r"\d\.\d times"),
    Case("WrongOnTwoThreads", "accuracy_with_any_number_of_threads", "is wrong"),
    Case("ReadsBoundInputsOnce", "bound_inputs_are_read_at_every_run", "run 1 of a binding"),
    Case("IgnoresBoundMemory", "outputs_are_written_to_bound_memory", "bound memory is wrong"),
    Case("ResizesToBoundMemory", "bound_memory_of_another_shape_is_rejected", "DID NOT RAISE"),
    Case("Doubles", "invalid_feeds_are_rejected_by_name", "is wrong", {"kind": "wrong dtype"}),
    Case("Doubles", "token_outside_the_vocabulary_is_rejected", "is wrong", {"index": "rows"}),
    Case("WrapsNoErrors", "runtime_error_is_wrapped_with_its_cause", "RuntimeError was not wrapped"),
    Case("ForgetsTheCause", "runtime_error_is_wrapped_with_its_cause", "no cause"),
    Case("AcceptsAnyOperator", "unknown_operator_is_named", "no error"),
    Case("ForgetsTheCauseOnLoading", "damaged_file_is_rejected_with_the_cause", "no cause"),
    Case("SharesOneBuffer", "concurrent_runs_return_their_own_outputs", "outputs of another"),
    Case("SpoiledByFailure", "failing_run_harms_no_other", "Not equal"),
    Case("SharesBetweenSessions", "concurrent_sessions", "beside other sessions|outputs, got"),
    Case("ClearsOutputsOnClose", "close_ends_runs_and_keeps_outputs", "not equal"),
    Case("RaisesDuringClose", "close_during_runs", "NoneType"),
    Case("LeaksMemory", "sessions_leak_nothing", r"left \d\d MiB"),
    Case("LeaksFiles", "sessions_leak_nothing", "left 150 files"),
    Case("LeaksThreads", "sessions_leak_nothing", r"left \d+ threads"),
    Case("LeaksProcesses", "sessions_leak_nothing", r"left \d+ processes"),
    Case("WritesToItsModel", "model_file_is_not_changed", "wrote to model.onnx"),
    Case("SetsTheEnvironment", "process_state_is_not_changed", "environment variables"),
    Case("SilencesNumpy", "process_state_is_not_changed", "floating-point errors"),
    Case("SetsASignalHandler", "process_state_is_not_changed", "signal"),
    Case("PrintsToStdout", "process_state_is_not_changed", "'running on the accelerator"),
    Case("ReportsAnother", "requested_precision_is_reported", "bf16", {"precision": "fp32"}),
    Case("ReportsALowerPrecisionToo", "requested_precision_is_reported", "int8", {"precision": "fp32"}),
    Case("ComputesInHalf", "error_matches_the_reported_precision", "reports fp32", {"precision": "fp32"}),
    Case("fake-lying", "error_matches_the_reported_precision", "reports bf16", {"precision": "bf16"}),
    Case("fake-lying", "reported_device_is_in_this_machine", "NVIDIA H200", {"device": "cpu"}, {"about": "device"}),
    Case("ClaimsAGpu", "device_files_are_open", "/dev/nvidia", {"device": "cuda"}),
    Case("fake-lying", "placement_follows_the_model", "follow the model", {}, {"about": "placement"}),
    Case("ReportsUndeclaredPlacement", "undeclared_placement_is_not_reported", "without declaring"),
    Case("fake-lying", "installed_versions_are_reported", "0.0.0", {}, {"about": "versions"}),
    Case("ReportsASet", "provenance_is_plain_data_about_the_model", "not JSON serializable"),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fakes and the flawed are found by name, here and in processes that the checks start."""
    helpers = str(Path(flaws.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")])))
    with fakes.installed({**fakes.NAMES, **flaws.names()}):
        yield
    lifetime.release()


def run(backend: str, case: Case) -> None:
    suite: Any = type("Trial", (Conformance,), {}, backend=backend, options=case.options)
    try:
        getattr(suite(), f"test_{case.check}")(**case.arguments)
    finally:
        suite.teardown_class()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.backend}-{case.check}")
def test_check_fails_a_backend_with_the_flaw(case: Case) -> None:
    errors = (AssertionError, IsorunError, TypeError, AttributeError, pytest.fail.Exception)
    with pytest.raises(errors, match=case.message):
        run(case.backend, case)


@pytest.mark.parametrize("case", ON_DEVICE[1:], ids=lambda case: case.check)
def test_check_passes_device_arrays_without_a_flaw(case: Case) -> None:
    run("HonestOnDevice", case)


def test_every_check_has_a_flaw_that_it_catches() -> None:
    checks = {name.removeprefix("test_") for name in dir(Conformance) if name.startswith("test_")}
    assert checks == {case.check for case in CASES}
