"""Every check of the conformance suite fails a backend with one flaw that the check exists for.

That the checks pass a backend without a flaw is tested in test_conformance_runner.py and tests/backends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flaws
from flaws import lifetime
from flaws.accuracy import IgnoresEpsilon, IgnoresTheScale, UnusedDialect
from isorun import IsorunError
from isorun_conformance import fakes, runner
from isorun_conformance.suite import Conformance


@dataclass(frozen=True)
class Case:
    """A backend with a flaw, the check that fails, and a key word of its message."""

    backend: str
    check: str
    message: str
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


UNUSED, UNSCALED, WITHOUT_EPSILON = (
    flaw.capabilities.dialects[0] for flaw in (UnusedDialect, IgnoresTheScale, IgnoresEpsilon)
)
_LATER = "later_encoders_in_every_dialect"
_KEEP = {"precision": "fp32", "padding": "keep"}
ON_DEVICE = [
    Case("ClaimsDeviceArrays", "output_on_the_device_can_be_fed", "run_on_device"),
    Case("CopiesToTheHost", "output_on_the_device_can_be_fed", "got ndarray"),
    Case("ReusesDeviceMemory", "no_later_run_changes_an_output_on_the_device", "is wrong"),
    Case("BindsTheFirstFeed", "binding_of_arrays_on_the_device", "is wrong"),
]
CASES = [
    *ON_DEVICE,
    Case("RoundsByBatch", "rows_are_the_same_bits_in_every_batch", "in batches of 7,", {"precision": "fp32"}),
    Case("RoundsByRun", "rows_are_the_same_bits_in_every_batch", "in batches of", {"precision": "fp32"}),
    Case("RoundsByBatch", "row_is_the_same_bits_beside_a_longer_one", "a row of 1 tokens", {"precision": "fp32"}),
    Case("OverflowsInExponentials", "functions_at_large_values", "Softmax is wrong at large", {"function": "Softmax"}),
    Case("FindsTheLastMaximum", "first_of_equal_values_is_found", "values that are equal is wrong"),
    Case("ClampsIndices", "index_outside_its_table_is_an_error", "at index 5 of 5", {"operator": "Gather"}),
    Case("IsZeroAfterAnIndexError", "index_outside_its_table_is_an_error", "after an index", {"operator": "Gather"}),
    Case("KeepsTheFirstBranch", "control_flow_follows_the_feeds", "If does not follow", {"operator": "If"}),
    Case("KeepsTheFirstBranch", "control_flow_follows_the_feeds", "Loop does not follow", {"operator": "Loop"}),
    Case("KeepsTheFirstOutputShape", "outputs_whose_shapes_depend_on_values", r"NonZero returned \(2, "),
    Case("AddsInDouble", "sums_are_those_of_their_type", "a sum in int64", {"kind": "int64"}),
    Case("AddsDoubleInFloat", "sums_are_those_of_their_type", "a sum in double", {"kind": "double"}),
    Case("PadsEmptyFeeds", "dimension_of_no_elements", r"\(2, 0\) and \(2, 3\)"),
    Case("NaNForNothingButPadding", "batch_of_nothing_but_padding_is_finite", "not finite", {"padding": "keep"}),
    Case("RunsOutsideEventLoopsOnly", "run_inside_an_event_loop", "inside an event loop, a run raised"),
    Case("ComputesInOneProcess", "fork_harms_neither_process", "opened a session of its own, ended with 1"),
    Case("SixteenHandles", "many_sessions_at_once", "open at once is wrong"),
    Case("WrapsInterrupts", "interrupt_ends_a_run_as_itself", "KeyboardInterrupt, got BackendFailed"),
    Case("SwallowsInterrupts", "interrupt_ends_a_run_as_itself", "KeyboardInterrupt, got nothing"),
    Case("NeverExits", "process_ends_without_close", "not close its session did not finish", {"seconds": 8}),
    Case("LeaksPerThread", "threads_that_have_ended_leak_nothing", "on 200 threads"),
    Case("KeepsWeightsPerShape", "new_shapes_keep_no_weights", "60 new shapes of a model of 4 MiB left"),
    Case("OneRunAtATime", "runs_on_their_callers_threads_do_not_wait_for_each_other", "one waits for the other"),
    Case(
        "EightContexts", "concurrent_runs_return_their_own_outputs", "the outputs of another one", {"padding": "keep"}
    ),
    Case("WrongAtItsMinimum", "accuracy_with_every_option", "with rows=1,"),
    Case("ChangesItsDefaults", "options_are_not_changed", "changed the declared options"),
    Case("OtherName", "found_by_name", "__init__"),
    Case("ImportsAtTheTop", "availability_imports_no_runtime", "imports 'onnx'"),
    Case("UnknownDialect", "capabilities_are_valid", "'primitve'.*primitive"),
    Case("SlowToAnswer", "whether_it_is_installed_is_known_at_once", r"installed\(\) took 1"),
    Case("SlowToLoad", "loading_is_quick_and_without_warnings", r"takes [23]\.\d s"),
    Case("WarnsWhenLoaded", "loading_is_quick_and_without_warnings", "warns: the engine is old"),
    Case("KeepsPythonsLock", "python_runs_while_a_model_does", "must release the GIL"),
    Case("ChangingCapabilities", "capabilities_are_valid", "differ from one reading"),
    Case("LiesAboutItsVersion", "version_is_that_of_the_package", r"returns '9.9'; onnx \d"),
    Case("DiagnosesInText", "diagnosis_consists_of_findings", "got str"),
    Case(
        "RunsWithoutNames", "methods_accept_the_arguments_of_the_contract", r"`run` must accept \(output_names, feeds"
    ),
    Case("OneDeviceTwice", "capabilities_are_valid", "duplicate"),
    Case("UndescribedOption", "options_are_described", "'knob'"),
    Case("NoRemedy", "unavailability_has_a_reason_and_a_remedy", "remedy"),
    Case("SaysTrue", "unavailability_has_a_reason_and_a_remedy", "isinstance"),
    Case("NeverComputes", "available_backend_computes", "it has no device"),
    Case("CompilesNothing", "available_backend_computes", "NoneType"),
    Case("ChangesItsMind", "unavailable_backend_is_refused", "DID NOT RAISE"),
    Case("AlwaysAvailable", "unavailable_without_its_package", "still ok"),
    Case("Rude", "unavailable_without_its_package", "the driver is upset"),
    Case("UnusedDialect", "accuracy_in_every_dialect", "uses a function", {"dialect": UNUSED, "outputs": None}),
    Case("IgnoresTheScale", _LATER, "gemma3.*is wrong", {"dialect": UNSCALED, "encoder": "gemma3-2x32"}),
    Case("IgnoresEpsilon", _LATER, "gemma3.*is wrong", {"dialect": WITHOUT_EPSILON, "encoder": "gemma3-2x32"}),
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
    Case("CountsTheMask", "accuracy_in_every_precision", "mask left", {"precision": "fp32", "padding": "keep"}),
    Case("NaNForMaskedRows", "accuracy_in_every_precision", "are NaN", {"precision": "fp32", "padding": "keep"}),
    Case("CountsTheMask", "accuracy_with_every_mask", "max_rel", {"mask": "left", "padding": "keep"}),
    Case("CountsTheMask", "accuracy_with_every_mask", "max_rel", {"mask": "holes", "padding": "keep"}),
    Case("TakesOneMaskForAll", "accuracy_with_every_mask", "max_rel", {"mask": "equal-counts", "padding": "keep"}),
    Case("WrongForOtherShapes", "shapes_may_change_between_runs", "max_rel"),
    Case("WrongBeyondEightRows", "accuracy_at_every_shape", "64 x 6", _KEEP),
    Case("WrongAtThirteenRows", "accuracy_at_every_shape", "13 x 6", _KEEP),
    Case("WrongBeyond64Tokens", "accuracy_at_every_shape", "1 x 129", _KEEP),
    Case("WrongBeyond64Rows", "accuracy_at_every_shape", "65 x 6", _KEEP),
    Case("WrongBeyond1024Rows", "accuracy_at_every_shape", "1025 x 3", _KEEP),
    Case("WrongWhenRowsShrink", "shapes_may_change_between_runs", "max_rel"),
    Case("WrongAt512Tokens", "accuracy_at_every_shape", "1 x 512", _KEEP),
    Case("WrongForOneRowOfOneToken", "accuracy_at_every_shape", "1 x 1", _KEEP),
    Case("WrongForBatchesOf64", "accuracy_at_every_shape", "64 x 6", _KEEP),
    Case("HalfPrecisionInLargeBatches", "accuracy_at_every_shape", "64 x 6", _KEEP),
    Case("fake-lying", "accuracy_at_every_shape", "not computed in bf16", {"precision": "bf16", "padding": "keep"}),
    Case("SpoiledByAnEmptyBatch", "empty_batch_is_right_or_rejected", ""),
    Case("SpreadsNaN", "nan_stays_in_its_row", "another row"),
    Case("ReplacesNaN", "nan_stays_in_its_row", "did not reach"),
    Case("WrongForTheLastToken", "tokens_and_types_at_their_limits", "input_ids all 98"),
    Case("WrongForEqualTokens", "tokens_and_types_at_their_limits", "input_ids all 0"),
    Case("WrongForLargeFeeds", "feeds_of_any_magnitude", "1e.12", {"scale": 1e12}),
    Case("WrongForFeedsOfSomeTens", "feeds_of_any_magnitude", "magnitude 30", {"scale": 30.0}),
    Case("ClipsInfinity", "infinity_is_kept", "feed is infinite"),
    Case("FlushesSmallFeeds", "feeds_of_any_magnitude", "1e-30", {"scale": 1e-30}),
    Case("RefusesFixedShapes", "model_of_fixed_shapes", "symbolic shapes only", {"shape": (1, 1)}),
    Case("SharesOneExecutable", "executables_of_several_shapes_are_independent", "3 x 8.*must be"),
    Case("IgnoresTheMask", "executables_of_several_shapes_are_independent", "1 x 8, mask right"),
    Case("KeepsClosedExecutables", "closed_executables_leave_no_weights", "left 4[0-9] MiB"),
    Case("WrongForWideModels", "models_of_every_size", "bert-4x256", {"size": "bert-4x256"}),
    Case("IdsInHalf", "models_of_every_size", "vocabulary", {"size": "bert-vocabulary-70k"}),
    Case("NotDeterministic", "repeated_run_returns_the_same", "Not equal"),
    Case("IgnoresTheOrder", "requested_outputs_in_the_requested_order", "is wrong where"),
    Case("SwapsTwoOfThree", "requested_outputs_in_the_requested_order", "is wrong"),
    Case("ReturnsATuple", "requested_outputs_in_the_requested_order", "tuple"),
    Case("ReturnsAllOutputs", "requested_outputs_in_the_requested_order", "got 4"),
    Case("ReturnsFloat64", "outputs_have_the_declared_types_and_shapes", "float64"),
    Case("ReturnsColumnsFirst", "outputs_have_the_declared_types_and_shapes", "C-contiguous"),
    Case("ReturnsPartsOfAPool", "outputs_have_the_declared_types_and_shapes", "return copies"),
    Case("ReturnsASubclass", "outputs_have_the_declared_types_and_shapes", "recarray"),
    Case("NarrowsIntegers", "outputs_of_other_types_than_the_inputs", ".best. an array of int64, .*got int32"),
    Case("BytesForBooleans", "outputs_of_other_types_than_the_inputs", ".positive. an array of bool, .*got uint8"),
    Case("UnpacksScalars", "outputs_of_other_types_than_the_inputs", ".total. a numpy.ndarray"),
    Case("ReusesItsMemory", "no_later_run_changes_an_output", "share memory"),
    Case("ReusesLargeMemory", "no_later_run_changes_an_output", "share memory|changed an output"),
    Case("LocksItsOutputs", "no_later_run_changes_an_output", "read-only"),
    Case("ReadsItsOutputs", "writing_to_an_output_changes_no_later_run", "NaN"),
    Case("ReturnsItsFeeds", "no_output_shares_memory_with_a_feed_or_another_output", "'y' shares memory with the feed"),
    Case("ReturnsViews", "no_output_shares_memory_with_a_feed_or_another_output", "'z' shares memory with the output"),
    Case("ChangesItsFeeds", "run_does_not_change_its_feeds", "changed the feed"),
    Case("DropsFeeds", "run_does_not_change_its_feeds", "changed the mapping"),
    Case("SortsTheRequest", "run_does_not_change_the_list_of_outputs", "changed the list"),
    Case("SharesRowsByFirstToken", "accuracy_at_every_shape", "is wrong", _KEEP),
    Case(
        "ComputesIntegersInFloat", "inputs_and_outputs_of_every_type", "values differ|invalid value", {"kind": "int64"}
    ),
    Case("KeepsResultsByTheFirstFeed", "every_value_is_read_at_every_run", "after a change"),
    Case("KeepsResultsByArray", "every_value_is_read_at_every_run", "after a change"),
    Case("KeepsResultsByTheirEnds", "every_value_is_read_at_every_run", "after a change"),
    Case("KeepsResultsByTheirPrint", "every_value_is_read_at_every_run", "after a change"),
    Case("TakesFeedsByPosition", "feeds_in_any_order", "in another order|failed while running"),
    Case("RefusesUnusedInputs", "input_that_no_node_reads", "unused"),
    Case("AsciiNames", "names_of_inputs_and_outputs_may_hold_any_character", "no such input"),
    Case(
        "TakesNegativesForZero",
        "masks_of_other_values_than_0_and_1",
        r"a right mask of \(-1, -1\), is wrong",
        {"values": (-1, -1)},
    ),
    Case("ComputesInInt32", "inputs_and_outputs_of_every_type", "values differ", {"kind": "int64"}),
    Case("KeepsTextInNumPy", "text_that_ends_in_nul_is_kept_or_rejected", "a text that ends in NUL"),
    Case("ReversesSequences", "sequences_of_arrays", "a sequence must have arrays of the shapes"),
    Case("DropsEmptyArrays", "sequences_of_arrays", "a sequence must have arrays of the shapes"),
    Case("RepeatsAnArray", "sequences_of_arrays", "shares memory"),
    Case("UnmasksEmptyRows", "accuracy_with_every_mask", "changed the feed", {"mask": "masked-row", "padding": "keep"}),
    Case("IgnoresTheScaleThatIsFed", "default_value_is_replaced_for_its_run_only", "in the place of a default value"),
    Case("KeepsTheFirstScale", "default_value_is_replaced_for_its_run_only", "a run with the default value"),
    Case("CutsText", "inputs_and_outputs_of_every_type", "values differ", {"kind": "string"}),
    Case("StripsText", "inputs_and_outputs_of_every_type", "values differ", {"kind": "string"}),
    Case("EndsTextAtNul", "inputs_and_outputs_of_every_type", "values differ", {"kind": "string"}),
    Case("IgnoresStrides", "feeds_of_any_memory_layout", "is wrong", {"layout": "strided"}),
    Case("IgnoresStrides", "feeds_of_any_memory_layout", "is wrong", {"layout": "reversed"}),
    Case("IgnoresStridesOfTokens", "feeds_of_any_memory_layout", "is wrong", {"layout": "columns of a larger array"}),
    Case("IgnoresAnOption", "every_option_is_read", "'level'"),
    Case("ConsumesItsOptions", "options_are_not_changed", "changed the options"),
    Case("WrongWithAnOption", "accuracy_with_every_option", "fast=True"),
    Case("RefusesEveryBatchWithAnOption", "accuracy_with_every_option", "dense=True"),
    Case("BindsItsThread", "threads_may_run_on_any_core", r"bound to the cores"),
    Case("ComputesOnOneThread", "two_threads_compute_on_two_cores", r"\d+% of the processor time: it computes alone"),
    Case("UsesEveryCore", "no_more_threads_compute_than_declared", r"\d\.\d cores busy"),
    Case("ExceedsItsFixedThreads", "no_more_threads_compute_than_declared", r"\d\.\d cores busy"),
    Case("WrongOnTwoThreads", "accuracy_with_any_number_of_threads", "is wrong"),
    Case("ReadsBoundInputsOnce", "bound_inputs_are_read_at_every_run", "run 1 of a binding"),
    Case("ReadsTheSecondInputOnce", "bound_inputs_are_read_at_every_run", "run 1 of a binding"),
    Case("ReusesOutputsOfABinding", "bound_inputs_are_read_at_every_run", "run 0 of a binding"),
    Case(
        "ReadsTheSecondInputOnce", "bound_tokens_and_mask_are_read_at_every_run", "attention_mask", {"padding": "keep"}
    ),
    Case("ReadsStridedInputsOnce", "bound_inputs_of_any_memory_layout", "strided memory"),
    Case("IgnoresTheOrderOfBinding", "outputs_in_the_order_of_their_binding", "a binding of zeta, mid"),
    Case("IgnoresBoundMemory", "outputs_are_written_to_bound_memory", "bound memory is wrong"),
    Case("WritesBeyondBoundMemory", "outputs_are_written_to_bound_memory", "beside the bound memory"),
    Case("ForgetsTypesOfBoundMemory", "bound_memory_of_other_types", "is wrong"),
    Case("SharesOneBinding", "bindings_and_runs_do_not_disturb_each_other", "one of two bindings is wrong"),
    Case("LosesTheCauseInABinding", "bound_inputs_may_be_replaced", "no cause"),
    Case("ResizesToBoundMemory", "bound_memory_of_another_shape_is_rejected", "DID NOT RAISE"),
    Case("Doubles", "invalid_feeds_are_rejected_by_name", "is wrong", {"kind": "wrong dtype"}),
    Case("Doubles", "token_outside_the_vocabulary_is_rejected", "is wrong", {"index": "rows"}),
    Case("WrapsNoErrors", "runtime_error_is_wrapped_with_its_cause", "was not wrapped"),
    Case("ForgetsTheCause", "runtime_error_is_wrapped_with_its_cause", "no cause"),
    Case("AcceptsAnyOperator", "unknown_operator_is_named", "no error"),
    Case("ForgetsTheCauseOnLoading", "damaged_file_is_rejected_with_the_cause", "no cause"),
    Case("SharesOneBuffer", "concurrent_runs_return_their_own_outputs", "outputs of another", {"padding": "keep"}),
    Case("PreparesShapesTwice", "concurrent_runs_at_new_shapes", "at a new shape|array of . rows"),
    Case("SharesTheRequest", "concurrent_runs_with_other_outputs_and_sizes", "is wrong|returned|must return a list"),
    Case("OneBindingAtATime", "concurrent_bindings", "busy"),
    Case("SpoiledByFailure", "failing_run_harms_no_other", "Not equal"),
    Case("KeepsAShapeOfAFailedRun", "runs_after_a_failed_run_are_right", "after a failed one"),
    Case("KeepsAShapeOfAFailedRun", "runs_beside_a_failed_run_are_right", "beside a failed one"),
    Case("SharesBetweenSessions", "concurrent_sessions", "beside other sessions|outputs, got|an array of size"),
    Case("ClearsOutputsOnClose", "close_ends_runs_and_keeps_outputs", "not equal"),
    Case("WrongDuringClose", "close_during_runs", "during close.. is wrong"),
    Case("LeaksMemory", "sessions_leak_nothing", r"left \d\d MiB"),
    Case("LeaksFiles", "sessions_leak_nothing", "left 150 files"),
    Case("LeaksThreads", "sessions_leak_nothing", r"left \d+ threads"),
    Case("LeaksThreadsOfReports", "sessions_leak_nothing", r"left \d+ threads"),
    Case("LeaksProcesses", "sessions_leak_nothing", r"left \d+ processes"),
    Case("WrongInTheHundredthSession", "sessions_leak_nothing", "one of many sessions"),
    Case("LeaksRuns", "runs_leak_nothing", r"runs left \d+ MiB", {"kind": "runs"}),
    Case("LeaksShapes", "unusual_runs_leak_nothing", r"new shapes left \d+ MiB", {"kind": "runs of new shapes"}),
    Case("LeaksBindings", "runs_leak_nothing", r"left \d+ MiB", {"kind": "bindings"}),
    Case("LeaksFailures", "unusual_runs_leak_nothing", r"left \d+ MiB", {"kind": "failing runs"}),
    Case("LeaksRefusedModels", "unusual_runs_leak_nothing", r"models left \d+ MiB", {"kind": "refused models"}),
    Case("SleepsBetweenRuns", "idle_session_is_idle_and_still_right", "after a pause"),
    Case("SpinsBetweenRuns", "idle_session_is_idle_and_still_right", "between runs, it took"),
    Case("Drifts", "runs_leak_nothing", "differs from the first", {"kind": "runs"}),
    Case("WrongAfterManyRuns", "runs_leak_nothing", "of many is wrong", {"kind": "runs"}),
    Case("ReusesModelsByStructure", "models_that_differ_in_their_weights_only", "differ in their weights"),
    Case("ReusesModelsByPath", "another_model_in_the_same_file", "held another one"),
    Case("OnlyTheLastSessionComputes", "several_sessions_of_one_model", "one of several"),
    Case("FreesTheMemoryOfOtherModels", "models_that_differ_in_their_weights_only", "after another one was closed"),
    Case("ClosesTheOthers", "several_sessions_of_one_model", "shut down|one of several"),
    Case("OnePrecision", "precisions_side_by_side", "fp32 beside", {"precision": "fp16"}),
    Case("SpoiledByARefusal", "session_after_a_model_that_was_refused", "an earlier model has failed"),
    Case("BoundToItsThread", "opened_run_and_closed_on_different_threads", "no context"),
    Case("AsciiPaths", "file_in_a_folder_of_any_name", "no such file"),
    Case("DividesByZero", "settings_of_the_application", "FloatingPointError", {"setting": "NumPy's errors raise"}),
    Case("Warns", "settings_of_the_application", "slow path", {"setting": "warnings are errors"}),
    Case(
        "FindsItsModelByARelativePath", "settings_of_the_application", "no such file", {"setting": "the folder changes"}
    ),
    Case("FreesItsOutputs", "garbage_collection_and_freed_feeds", "is wrong"),
    Case("SpoiledByAFork", "fork_harms_neither_process", "after a fork"),
    Case("WritesToItsModel", "model_file_is_not_changed", "wrote to .*onnx"),
    Case("PinsItself", "process_state_is_not_changed", r"CPU affinity \(in compile"),
    Case("SilencesNumpy", "process_state_is_not_changed", r"floating-point errors \(in run"),
    Case("ChangesWhenAsked", "process_state_is_not_changed", r"\(ENGINE_HOME\) \(in availability"),
    Case("ChangesWhenItFails", "process_state_is_not_changed", r"the working directory \(in a failed compile"),
    Case("SilencesRuns", "process_state_is_not_changed", r"the standard streams \(in run\(\), for a while"),
    Case("MovesWhileItCompiles", "process_state_is_not_changed", r"the working directory, for a while \(in compile"),
    Case("LeavesADaemon", "nothing_is_left_behind", "child processes"),
    Case("SharesATemporaryFile", "temporary_files_have_names_of_their_own", "writes engine.tmp in"),
    Case("TrustsItsCache", "damaged_cache_is_made_again", "files of the cache lost their ends"),
    Case("KeepsFilesAtHome", "nothing_is_left_behind", "left .engine"),
    Case("SendsDatagrams", "nothing_is_sent", "127.0.0.1"),
    Case("StopsCollecting", "process_state_is_not_changed", r"garbage collection \(in close"),
    Case("PrintsToStdout", "nothing_is_written_to_stdout", "'running on the accelerator"),
    Case("PrintsInC", "nothing_is_written_to_stdout", "'loaded"),
    Case("PrintsAtExit", "nothing_is_written_to_stdout", "'bye"),
    Case("PrintsWhenLoaded", "nothing_is_written_to_stdout", "'engine 1.0"),
    Case("PhonesHome", "nothing_is_sent", "127.0.0.1"),
    Case("LogsEveryRun", "runs_log_nothing", "'running"),
    Case("LeavesAFile", "nothing_is_left_behind", "engine.bin"),
    Case("LeavesTemporaryFiles", "nothing_is_left_behind", "left tmp"),
    Case("LeavesAChild", "nothing_is_left_behind", "2 child processes"),
    Case("ReportsAnother", "requested_precision_is_reported", "bf16", {"precision": "fp32"}),
    Case("ReportsALowerPrecisionToo", "requested_precision_is_reported", "int8", {"precision": "fp32"}),
    Case("ComputesInHalf", "error_matches_the_reported_precision", "reports fp32", {"precision": "fp32"}),
    Case("fake-lying", "error_matches_the_reported_precision", "reports bf16", {"precision": "bf16"}),
    Case("HalfPrecisionFor64Rows", "error_matches_the_reported_precision", "reports fp32", {"precision": "fp32"}),
    Case("HalvesLargeProducts", "error_matches_the_reported_precision", "compute wide-node in", {"precision": "fp32"}),
    Case("InventsOperators", "operators_are_those_of_the_model", "one Softmax.*MegaKernel"),
    Case("InventsADevice", "operators_are_grouped_by_device_or_runtime", "'NPU0'", {"device": "cpu"}),
    Case("NamesAnotherVersion", "installed_versions_are_reported", "reports 9.9.9 under the package's name"),
    Case("ReportsVersionsInNumbers", "installed_versions_are_reported", "whose `versions` is a mapping"),
    Case("ReportsRuns", "report_is_the_same_before_and_after_runs", "after two runs"),
    Case("TimesInSeconds", "device_times_are_plausible", "less than"),
    Case("TimesOfAnother", "device_times_are_plausible", "but only"),
    Case("fake-lying", "reported_device_is_in_this_machine", "NVIDIA H200", {"device": "cpu"}, {"about": "device"}),
    Case("ClaimsAGpu", "device_files_are_open", "/dev/nvidia", {"device": "cuda"}),
    Case("fake-lying", "placement_follows_the_model", "follow the model", {}, {"about": "placement"}),
    Case("ReportsUndeclaredPlacement", "undeclared_placement_is_not_reported", "without declaring"),
    Case("fake-lying", "installed_versions_are_reported", "0.0.0", {}, {"about": "versions"}),
    Case("ReportsASet", "provenance_is_plain_data_about_the_model", "to plain data"),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The fakes and the flawed are found by name, here and in processes that the checks start."""
    monkeypatch.chdir(tmp_path)  # where some of them leave files
    helpers = str(Path(flaws.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")])))
    with fakes.installed({**fakes.NAMES, **flaws.names()}):
        yield
    lifetime.release()


FAILURES = (AssertionError, IsorunError, TypeError, AttributeError, pytest.fail.Exception)


def failure(backend: str, case: Case) -> BaseException | None:
    """What a check raises for a backend; ``None`` if it passes."""
    suite: Any = type("Trial", (Conformance,), {}, backend=flaws.named(backend), options=case.options)
    try:
        getattr(suite(), f"test_{case.check}")(**case.arguments)
    except FAILURES as error:
        return error
    finally:
        suite.teardown_class()
    return None


def first_of_each_check() -> Iterator[Any]:
    """The cases; but for the first of each check, they are long."""
    checks = set()
    for case in CASES:
        marks = [pytest.mark.long] if case.check in checks else []
        checks.add(case.check)
        yield pytest.param(case, marks=marks, id=f"{case.backend}-{case.check}")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", [*first_of_each_check()])
def test_check_fails_a_backend_with_the_flaw(case: Case) -> None:
    found = failure(case.backend, case)
    assert found is not None
    assert re.search(case.message, str(found))


def test_leak_is_found_beside_free_memory() -> None:
    """What earlier work freed below a block that is still used stays with the process, and new blocks fill it."""
    blocks = [np.ones(2**13) for _ in range(4000)]
    del blocks[:-1]
    (case,) = [case for case in CASES if case.backend == "LeaksShapes"]
    assert failure(case.backend, case) is not None


@pytest.mark.long
@pytest.mark.parametrize("check", ["no_more_threads_compute_than_declared", "two_threads_compute_on_two_cores"])
def test_check_passes_threads_of_a_pool(check: str) -> None:
    assert failure("HonestWithAPool", Case("HonestWithAPool", check, "")) is None


def test_check_passes_an_option_for_batches_without_padding() -> None:
    assert failure("HonestWithoutPadding", Case("HonestWithoutPadding", "accuracy_with_every_option", "")) is None


def test_check_passes_an_option_that_only_encoders_read() -> None:
    case = Case("HonestOptionOfEncoders", "every_option_is_read", "")
    assert failure(case.backend, case) is None


@pytest.mark.parametrize("check", ["availability_imports_no_runtime", "unavailable_without_its_package"])
def test_check_skips_a_package_that_isorun_imports(check: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="isorun itself imports numpy"):
        failure("HonestInNumpy", Case("HonestInNumpy", check, ""))


@pytest.mark.parametrize("case", ON_DEVICE[1:], ids=lambda case: case.check)
def test_check_passes_device_arrays_without_a_flaw(case: Case) -> None:
    assert failure("HonestOnDevice", case) is None


def test_every_check_has_a_flaw_that_it_catches() -> None:
    checks = {name.removeprefix("test_") for name in dir(Conformance) if name.startswith("test_")}
    assert checks == {case.check for case in CASES}


@pytest.mark.long
@pytest.mark.parametrize("backend", sorted({flaws.named(case.backend) for case in CASES} & flaws.names().keys()))
def test_whole_suite_fails_a_backend_with_a_flaw(backend: str) -> None:
    report = runner.run(backend)
    assert not report.passed
    assert len(report.causes) < len(report.checks) / 4, [checks[0].message for checks in report.causes]
