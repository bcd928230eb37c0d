"""Checks of io bindings to the host's memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from isorun import IOBinding, Session
from isorun.errors import BackendFailed, InvalidFeeds
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import four_outputs, other_types
from isorun_conformance.sample_models import SUM, dense, parsed

_GUARD = 64  # elements on either side of bound memory


class Bindings(Checks):
    """Bound inputs and outputs."""

    @proves("binding")
    def test_bound_inputs_are_read_at_every_run(self) -> None:
        """Inputs change one at a time, and all outputs are kept."""
        model = four_outputs(dynamic=False)
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            names = list(self.under_test.expected(model, feeds))
            binding = _bound(session, feeds, dict.fromkeys(names))
            runs = []
            for number, name in enumerate([*feeds, *reversed(feeds), *feeds]):
                feeds[name][...] = model.feeds(number)[name]
                session.run_with_iobinding(binding)
                fed = {key: array.copy() for key, array in feeds.items()}
                runs.append((fed, dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))))
            for number, (fed, outputs) in enumerate(runs):
                what = f"run {number} of a binding"
                self.under_test.assert_accurate(model, session, fed, outputs, what=what)

    @proves("binding")
    @pytest.mark.parametrize("padding", ["keep", "auto"])
    def test_bound_tokens_and_mask_are_read_at_every_run(self, padding: str) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model, padding=padding) as session:
            feeds = model.feeds()
            names = [spec.name for spec in session.get_outputs()]
            binding = _bound(session, feeds, dict.fromkeys(names))
            for number, name in enumerate([*feeds, *feeds]):
                feeds[name][...] = model.feeds(number + 1, mask=("left", "right", "none")[number % 3])[name]
                session.run_with_iobinding(binding)
                outputs = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
                what = f"a binding after a change of {name}"
                self.under_test.assert_accurate(model, session, feeds, outputs, what=what)

    @proves("binding")
    def test_bound_inputs_of_any_memory_layout(self) -> None:
        model = dense()
        with self.under_test.open(model) as session:
            memory = np.repeat(model.feeds()["x"], 2, axis=1)
            x = memory[:, ::2]
            binding = _bound(session, {"x": x}, {"y": None})
            for seed in range(2):
                memory[...] = np.repeat(model.feeds(seed)["x"], 2, axis=1)
                session.run_with_iobinding(binding)
                outputs = {"y": binding.copy_outputs_to_cpu()[0]}
                what = "a binding of strided memory"
                self.under_test.assert_accurate(model, session, {"x": x}, outputs, what=what)

    @proves("binding")
    def test_outputs_in_the_order_of_their_binding(self) -> None:
        model = four_outputs(dynamic=False)
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            expected = self.under_test.expected(model, feeds)
            for names in (*itertools.permutations(expected, 2), tuple(reversed(expected)), tuple(sorted(expected))):
                binding = _bound(session, feeds, dict.fromkeys(names))
                session.run_with_iobinding(binding)
                outputs = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
                what = f"a binding of {', '.join(names)}"
                self.under_test.assert_accurate(model, session, feeds, outputs, what=what)

    @proves("binding")
    def test_outputs_are_written_to_bound_memory(self) -> None:
        """Of three outputs, and to no more than that memory. The second binding has other memory."""
        model = four_outputs(dynamic=False)
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            for what in ("the bound memory", "the memory of a second binding"):
                memory = {name: np.full(15 + 2 * _GUARD, np.nan, np.float32) for name in ("last", "mid", "alpha")}
                bound = {name: array[_GUARD:-_GUARD].reshape(5, 3) for name, array in memory.items()}
                binding = _bound(session, feeds, bound)
                for seed in range(2):
                    for name, array in model.feeds(seed).items():
                        feeds[name][...] = array
                    session.run_with_iobinding(binding)
                    self.under_test.assert_accurate(model, session, feeds, bound, what=what)
                    for array in memory.values():
                        outside = np.concatenate([array[:_GUARD], array[-_GUARD:]])
                        assert np.isnan(outside).all(), "memory beside the bound memory was written to"

    @proves("binding")
    def test_bound_memory_of_other_types(self) -> None:
        model = other_types(dynamic=False)
        with self.under_test.open_or_skip(model) as session:
            feeds = model.feeds()
            expected = self.under_test.expected(model, feeds)
            bound = {name: np.zeros_like(array, _type_of(session, name)) for name, array in expected.items()}
            session.run_with_iobinding(_bound(session, feeds, bound))
            self.under_test.assert_accurate(model, session, feeds, bound, what="the bound memory")

    @proves("binding")
    def test_bound_memory_of_another_shape_is_rejected(self) -> None:
        model = dense()
        with self.under_test.open(model) as session:
            memory = np.full((4, 256), np.nan, np.float32)
            binding = _bound(session, model.feeds(), {"y": memory[:2]})
            with pytest.raises((InvalidFeeds, BackendFailed)):
                session.run_with_iobinding(binding)
            assert np.isnan(memory).all(), "bound memory of another shape was written to"

    @proves("binding")
    def test_bindings_and_runs_do_not_disturb_each_other(self) -> None:
        model = four_outputs(dynamic=False)
        with self.under_test.open(model) as session:
            names = list(self.under_test.expected(model, model.feeds()))
            feeds = [model.feeds(seed) for seed in range(3)]
            bindings = [_bound(session, fed, dict.fromkeys(names)) for fed in feeds[:2]]
            for _ in range(2):
                for binding in bindings:
                    session.run_with_iobinding(binding)
                self.under_test.assert_accurate(model, session, feeds[2], what="a run beside bindings")
            for binding, fed in zip(bindings, feeds, strict=False):
                outputs = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
                what = "one of two bindings"
                self.under_test.assert_accurate(model, session, fed, outputs, what=what)

    @proves("binding")
    def test_bound_inputs_may_be_replaced(self) -> None:
        """By arrays of another shape, also after a run that failed."""
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        with self.under_test.open(parsed(SUM)) as session:
            binding = _bound(session, {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)}, {"z": None})
            for x, y in ((3, 3), (2, 3), (4, 4), (5, 5)):
                binding.bind_cpu_input("x", np.arange(x, dtype=np.float32))
                binding.bind_cpu_input("y", np.ones(y, np.float32))
                if x == y:
                    session.run_with_iobinding(binding)
                    (z,) = binding.copy_outputs_to_cpu()
                    np.testing.assert_array_equal(z, np.arange(x) + 1)
                else:
                    with pytest.raises(BackendFailed) as failure:
                        session.run_with_iobinding(binding)
                    assert failure.value.__cause__ is not None, "the error of a binding has no cause"
                    ones = np.ones(3, np.float32)
                    (z,) = session.run(None, {"x": ones, "y": ones})
                    np.testing.assert_array_equal(z, ones + 1, err_msg="a run after a failed one of a binding is wrong")


def _bound(session: Session, feeds: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray | None]) -> IOBinding:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, memory in outputs.items():
        if memory is None:
            binding.bind_output(name)
        else:
            binding.bind_output(name, "cpu", 0, memory.dtype, memory.shape, memory.ctypes.data)
    return binding


def _type_of(session: Session, name: str) -> np.dtype[np.generic] | None:
    return next(spec.dtype for spec in session.get_outputs() if spec.name == name)
