"""Checks of what run() returns: the requested outputs, of the declared types, in memory of their own."""

from __future__ import annotations

import itertools

import numpy as np

from isorun_conformance.backend_under_test import named
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import four_outputs, other_types, sequences, views
from isorun_conformance.sample_models import Dense

_LARGE = 1 << 12  # rows: outputs of 4 MiB
_RUNS = 20  # more than the buffers of a pool
_PADDING = 1 << 20
"""What an output's buffer may be larger, in bytes."""


class Outputs(Checks):
    """Names, types, memory."""

    @proves("results")
    def test_requested_outputs_in_the_requested_order(self) -> None:
        """Every selection in every order, of outputs that only their values tell apart."""
        dynamic = self.under_test.capabilities.dynamic_shapes
        for model in (four_outputs(dynamic=dynamic), self.under_test.encoder()):
            with self.under_test.open(model) as session:
                feeds = model.feeds()
                expected = named(session, session.run(None, feeds))
                self.under_test.assert_accurate(model, session, feeds, expected)
                for count in range(1, len(expected) + 1):
                    for names in itertools.permutations(expected, count):
                        outputs = session.run(list(names), feeds)
                        assert len(outputs) == count, f"requested {count} output(s), got {len(outputs)}"
                        for name, array in zip(names, outputs, strict=True):
                            message = f"{name} is wrong where {', '.join(names)} are requested"
                            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=message)

    @proves("results")
    def test_outputs_have_the_declared_types_and_shapes(self) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            outputs = named(session, session.run(None, model.feeds()))
            self.under_test.assert_accurate(model, session, model.feeds(), outputs)
            for spec in session.get_outputs():
                assert spec.shape is not None
                pairs = zip(outputs[spec.name].shape, spec.shape, strict=True)
                fits = all(size == declared for size, declared in pairs if isinstance(declared, int))
                assert fits, f"{spec.name} must have shape {spec.shape}, got {outputs[spec.name].shape}"
                strides = outputs[spec.name].strides
                assert outputs[spec.name].flags.c_contiguous, f"{spec.name} must be C-contiguous, got strides {strides}"
            held = {id(buffer): buffer.nbytes for buffer in map(_buffer, outputs.values())}
            sizes = sum(array.nbytes for array in outputs.values())
            kept = f"outputs of {sizes:,} bytes keep arrays of {sum(held.values()):,} bytes in memory; return copies"
            assert sum(held.values()) <= 2 * sizes + _PADDING, kept

    @proves("types")
    def test_outputs_of_other_types_than_the_inputs(self) -> None:
        model = other_types(dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            for seed in range(3):
                self.under_test.assert_accurate(model, session, model.feeds(seed))

    @proves("types")
    def test_sequences_of_arrays(self) -> None:
        """In order, of every size, in memory of their own."""
        model = sequences()
        with self.under_test.open_or_skip(model) as session:
            for seed in range(2):
                feeds = model.feeds(seed)
                outputs, expected = named(session, session.run(None, feeds)), model.outputs(feeds)
                arrays = [*outputs["y"], outputs["last"]]
                shapes = [array.shape for array in arrays]
                sizes = [array.shape for array in (*expected["y"], expected["last"])]
                assert shapes == sizes, f"a sequence must have arrays of the shapes {sizes}, got {shapes}"
                for array, value in zip(arrays, (*expected["y"], expected["last"]), strict=True):
                    np.testing.assert_array_equal(array, value, err_msg="an array of a sequence is wrong")
                for array, second in itertools.combinations([*arrays, *feeds["x"]], 2):
                    shared = np.shares_memory(array, second)
                    assert not shared, "an array of a sequence shares memory with another one, or with a feed"

    @proves("results")
    def test_no_later_run_changes_an_output(self) -> None:
        dynamic = self.under_test.capabilities.dynamic_shapes
        large = Dense("one-node", False, _LARGE)  # runtimes treat large memory in another way
        for model in (four_outputs(dynamic=dynamic), self.under_test.encoder(), large):
            with self.under_test.open(model, padding="keep") as session:
                first = session.run(None, model.unmasked(1))
                kept = [array.copy() for array in first]
                for seed in range(2, _RUNS):
                    for array in session.run(None, model.unmasked(seed)):
                        assert not any(np.shares_memory(array, earlier) for earlier in first), "two runs share memory"
            for array, copy in zip(first, kept, strict=True):
                np.testing.assert_array_equal(array, copy, err_msg="a later run, or close(), changed an output")
                assert array.flags.writeable, "an output is read-only; the caller owns it and may write to it"

    @proves("results")
    def test_writing_to_an_output_changes_no_later_run(self) -> None:
        """The caller owns the outputs; a runtime must not read them again."""
        model = self.under_test.encoder()
        with self.under_test.open(model, padding="keep") as session:
            for array in session.run(None, model.feeds()):
                array[...] = np.nan
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("results")
    def test_no_output_shares_memory_with_a_feed_or_another_output(self) -> None:
        """The caller may write to any of them, also where the model hands a feed or a weight on unchanged."""
        model = views(dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            feeds = model.feeds()
            values = {"the feed 'x'": feeds["x"]}
            for spec, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                for owner, array in values.items():
                    assert not np.shares_memory(value, array), f"the output {spec.name!r} shares memory with {owner}"
                values[f"the output {spec.name!r}"] = value
                assert value.flags.c_contiguous, f"the output {spec.name!r} must be C-contiguous, got {value.strides}"
                assert value.flags.writeable, f"the output {spec.name!r} is read-only; the caller owns it"
            self.under_test.assert_accurate(model, session, feeds)
            for what, value in values.items():
                value[...] = np.nan
                what = f"a run after the caller has changed {what}"
                self.under_test.assert_accurate(model, session, model.feeds(), what=what)


def _buffer(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one uses."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
