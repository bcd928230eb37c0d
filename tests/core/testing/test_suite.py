"""The conformance suite catches what it should: for every check there is a backend with one flaw that only it sees."""

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
from isorun.testing.suite import Conformance


@dataclass(frozen=True)
class Case:
    flaw: str
    check: str
    says: str
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("OtherName", "it_is_found_by_its_name", "hand the name on"),
    Case("ImportsAtTheTop", "being_asked_whether_it_is_here_imports_no_runtime", "imports 'onnx'"),
    Case("DialectsAreAString", "capabilities_are_of_the_known_kinds", "dialects is a str, not a tuple"),
    Case("UnknownDialect", "capabilities_are_of_the_known_kinds", r"\['primitve'\]; isorun knows .*primitive"),
    Case("UnknownReport", "capabilities_are_of_the_known_kinds", r"\['temperature'\]; isorun knows placement"),
    Case("NoDevice", "capabilities_are_of_the_known_kinds", "devices is empty"),
    Case("BareOption", "options_are_described", "'knob' has no description"),
    Case("NoRemedy", "it_says_whether_it_is_here_and_if_not_why", "no remedy"),
    Case("NeverComputes", "what_says_that_it_is_here_computes", "it has no device"),
    Case("CompilesNothing", "what_says_that_it_is_here_computes", r"its compile\(\) gives a NoneType, and no isorun"),
    Case("SaysTrue", "it_says_whether_it_is_here_and_if_not_why", "isinstance"),
    Case("Fickle", "what_says_that_it_is_not_here_is_refused", "DID NOT RAISE"),
    Case("AlwaysHere", "without_its_package_it_is_not_here_and_names_what_to_install", "still says"),
    Case("Rude", "without_its_package_it_is_not_here_and_names_what_to_install", "the driver is upset"),
    Case("CountsTheMask", "a_bert_in_every_declared_dialect", "mask left: last_hidden", {"dialect": "primitive"}),
    Case(
        "TakesQueriesForKeys",
        "a_last_layer_of_one_position_in_every_declared_dialect",
        "mask none: pooler_output: max_rel",
        {"dialect": "primitive"},
    ),
    Case("CountsTheMask", "a_bert_in_every_declared_precision", "max_rel is", {"precision": "fp32"}),
    *(
        Case("CountsTheMask", "parity_on_every_kind_of_mask", "max_rel is", {"mask": mask, "padding": "keep"})
        for mask in ("left", "holes")
    ),
    Case("WrongBeyondTheFirstShape", "shapes_change_from_run_to_run", "max_rel is"),
    Case("RefusesFixedShapes", "a_model_of_fixed_shapes", "symbolic shapes alone"),
    Case("GuessesShapes", "without_dynamic_shapes_a_symbolic_model_is_refused_or_right", "4 x 16: .*max_rel"),
    Case("Silent", "without_dynamic_shapes_a_symbolic_model_is_refused_or_right", "does not say why"),
    Case("WrongForWideModels", "models_of_every_size", "bert-4x256 is wrong", {"size": "bert-4x256"}),
    Case("NotDeterministic", "a_repeated_run_gives_the_same", "Not equal to tolerance"),
    Case("IgnoresTheOrder", "outputs_by_name_and_in_that_order", "shapes"),
    Case("GivesATuple", "outputs_by_name_and_in_that_order", r"run\(\) gives a tuple; a list of arrays is due"),
    Case("GivesAll", "outputs_by_name_and_in_that_order", "asked for one output, it gives 2"),
    Case("HandsOnItsFeeds", "a_result_is_no_feed", "the result 'y' lies in the memory of the feed 'x'"),
    Case("Widens", "outputs_have_the_types_and_shapes_that_the_session_says", "is float64; the model says float32"),
    Case("ReusesItsMemory", "no_later_run_changes_a_result", "two runs share memory"),
    Case("ChangesItsFeeds", "feeds_stay_as_they_were", "changed its feed"),
    Case("ReadsMemoryAsItLies", "how_a_feed_lies_in_memory_does_not_matter", "is wrong", {"layout": "strided"}),
    Case("ReadsMemoryAsItLies", "how_a_feed_lies_in_memory_does_not_matter", "is wrong", {"layout": "reversed"}),
    Case("TakesEveryCore", "one_thread_is_one_thread", r"\d\.\d times the processor time"),
    Case("WrongOnTwoThreads", "a_number_of_threads_changes_no_answer", "is wrong"),
    Case("BindsOnce", "bound_inputs_are_read_anew_at_every_run", "run 1 of a binding"),
    Case("WritesElsewhere", "outputs_are_written_to_the_memory_that_is_bound", "what the memory holds is wrong"),
    Case("WritesWhatDoesNotFit", "memory_of_another_shape_is_refused", "DID NOT RAISE"),
    Case("ClaimsADevice", "an_output_left_on_the_device_can_be_fed", "run_on_device"),
    Case("CopiesToTheHost", "an_output_left_on_the_device_can_be_fed", "y is a ndarray"),
    Case("ReusesTheDevicesMemory", "no_later_run_changes_what_was_left_on_the_device", "fed from the device, it is wr"),
    Case("BindsTheFirstFeed", "a_binding_takes_and_leaves_arrays_of_the_device", "fed from the device, it is wrong"),
    Case("AlwaysTwice", "bad_feeds_are_refused_by_name", "is wrong", {"kind": "another dtype"}),
    Case("ClaimsToCheckIndices", "a_token_outside_the_vocabulary_is_refused", "DID NOT RAISE", {"index": -1}),
    Case("SpoiledByBadFeeds", "a_token_outside_the_vocabulary_is_refused", "is wrong", {"index": "rows"}),
    Case("LetsErrorsThrough", "a_runtimes_failure_is_wrapped_with_its_cause", "a RuntimeError came through"),
    Case("ForgetsTheCause", "a_runtimes_failure_is_wrapped_with_its_cause", "not its cause"),
    Case("TakesAnyOperator", "an_operator_that_no_runtime_has", "nothing was raised"),
    Case("ForgetsTheCauseOfLoading", "a_damaged_file_is_refused_with_the_cause", "not its cause"),
    Case("SharesOneBuffer", "many_threads_get_what_one_gets", "another one's answer"),
    Case("SpoiledByBadFeeds", "a_failing_run_harms_no_other", "Not equal to tolerance"),
    Case("SharesBetweenSessions", "several_sessions_at_once", "beside other sessions|outputs; . came"),
    Case("TakesResultsAlong", "after_close_nothing_runs_and_results_stay", "Arrays are not equal"),
    Case("DiesAmidRuns", "closing_amid_runs", "NoneType"),
    Case("LeaksMemory", "200_sessions_leave_nothing_behind", r"left \d\d MiB"),
    Case("LeaksFiles", "200_sessions_leave_nothing_behind", "left 150 files open"),
    Case("LeaksThreads", "200_sessions_leave_nothing_behind", r"left \d+ threads"),
    Case("LeaksProcesses", "200_sessions_leave_nothing_behind", r"left \d+ processes"),
    Case("WritesToItsModel", "the_model_stays_as_it_was", "it wrote to model.onnx"),
    *(
        Case(flaw, "what_all_of_a_program_share_stays_as_it_was", says)
        for flaw, says in (
            ("SetsTheEnvironment", "it changed environment variables, which"),
            ("SilencesNumpy", "it changed what NumPy does about floating-point errors"),
            ("TakesTheInterrupt", "it changed what a signal does"),
            ("Talks", "it printed 'running on the accelerator.n': standard output is the program's"),
        )
    ),
    Case("ReportsAnother", "the_precision_reported_is_the_one_asked_for", "reports bf16", {"precision": "fp32"}),
    Case("ReportsSomeInLess", "the_precision_reported_is_the_one_asked_for", "reports int8", {"precision": "fp32"}),
    Case(
        "ComputesInHalf", "the_precision_reported_is_the_one_computed_in", "not computed in fp32", {"precision": "fp32"}
    ),
    Case("fake-lying", "the_precision_reported_is_the_one_computed_in", "not computed in bf16", {"precision": "bf16"}),
    Case(
        "fake-lying",
        "the_device_reported_is_one_of_this_machine",
        "reports 'NVIDIA H200'; this machine has",
        {"device": "cpu"},
        {"about": "device"},
    ),
    Case("ClaimsAGpu", "what_claims_a_device_holds_it_open", "holds none of /dev/nvidia open", {"device": "cuda"}),
    Case("fake-lying", "every_operator_is_placed", "does not follow the model", {}, {"about": "placement"}),
    Case("GuessesPlacement", "what_is_not_declared_is_not_guessed", "add 'placement' to reports"),
    Case("fake-lying", "versions_are_those_that_are_installed", "it reports .*0.0.0", {}, {"about": "versions"}),
    Case("NamesNoModel", "provenance_is_plain_data_and_names_the_model", "not JSON serializable"),
]


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fakes and the flawed are found by name, here and in processes that the checks start."""
    here = str(Path(flaws.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])))
    with fakes.installed({**fakes.NAMES, **flaws.names()}):
        yield
    for left in lifetime.LEAKED:
        if isinstance(left, int):
            os.close(left)
        elif hasattr(left, "kill"):
            left.kill()
            left.wait()
    lifetime.LEAKED.clear()


def run(backend: str, case: Case) -> None:
    suite: Any = type("Trial", (Conformance,), {}, backend=backend, options=case.options)
    try:
        getattr(suite(), f"test_{case.check}")(**case.arguments)
    finally:
        suite.teardown_class()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.flaw}-{case.check}")
def test_a_flaw_is_caught_and_said(case: Case) -> None:
    with pytest.raises(
        (AssertionError, IsorunError, TypeError, AttributeError, pytest.fail.Exception), match=case.says
    ):
        run(case.flaw, case)


SETS_THREADS = {"TakesEveryCore", "WrongOnTwoThreads"}  # which what the fakes compute with does not
ON_DEVICE = {"ClaimsADevice", "CopiesToTheHost", "ReusesTheDevicesMemory", "BindsTheFirstFeed"}
DOES_NOT_APPLY = {"BareOption", "Fickle", "GuessesShapes", "Silent", "ClaimsAGpu", "GuessesPlacement", "fake-lying"}


APPLIES = [case for case in CASES if case.flaw not in DOES_NOT_APPLY]


@pytest.mark.parametrize(
    "case",
    {f"{case.check} {case.arguments}": case for case in APPLIES}.values(),
    ids=lambda case: case.check,
)
def test_the_same_check_passes_without_the_flaw(case: Case) -> None:
    run("ort-cpu" if case.flaw in SETS_THREADS else "HonestOnDevice" if case.flaw in ON_DEVICE else "Honest", case)


def test_every_check_has_a_flaw_that_it_catches() -> None:
    checks = {name.removeprefix("test_") for name in dir(Conformance) if name.startswith("test_")}
    assert checks == {case.check for case in CASES}
