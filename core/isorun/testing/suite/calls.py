"""Checks of calls: outputs by name, memory that belongs to whom it should, threads, bindings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from isorun import IOBinding, Session
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.system.threads import usable_cores
from isorun.testing.suite.processes import processor_ticks
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import HandsOn, Sample, dense
from isorun.testing.suite.subject import Checks, named

_TICKS = 40  # of 10 ms each: how much processor time a measurement of threads waits for
_SECONDS = 30


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _unaligned(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "read-only": _read_only,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "unaligned": _unaligned,
}


class Calls(Checks):
    """Results, threads, binding."""

    @proves("results")
    def test_outputs_by_name_and_in_that_order(self) -> None:
        model = self.subject.bert()
        with self.subject.open(model) as session:
            feeds = model.feeds()
            hidden, pooled = named(session, session.run(None, feeds)).values()
            only = session.run(["pooler_output"], feeds)
            assert len(only) == 1, f"asked for one output, it gives {len(only)}"
            np.testing.assert_allclose(only[0], pooled, rtol=1e-5, atol=1e-6)
            again = session.run(["pooler_output", "last_hidden_state"], feeds)
            np.testing.assert_allclose(again[0], pooled, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(again[1], hidden, rtol=1e-5, atol=1e-6)

    @proves("results")
    def test_outputs_have_the_types_and_shapes_that_the_session_says(self) -> None:
        model = self.subject.bert()
        with self.subject.open(model) as session:
            for spec, value in zip(session.get_outputs(), session.run(None, model.feeds()), strict=True):
                assert isinstance(value, np.ndarray), f"{spec.name} is a {type(value).__name__}"
                wide = value.dtype == np.float64 and self.subject.capabilities.precisions[0] == "fp64"
                assert wide or value.dtype == spec.dtype, f"{spec.name} is {value.dtype}; the model says {spec.dtype}"
                assert spec.shape is not None
                fits = [size == said for size, said in zip(value.shape, spec.shape, strict=True) if type(said) is int]
                assert all(fits), f"{spec.name} is {value.shape}; the model says {spec.shape}"

    @proves("results")
    def test_no_later_run_changes_a_result(self) -> None:
        model = self.subject.bert()
        with self.subject.open(model, padding="keep") as session:
            first = session.run(None, model.feeds(1, mask="none"))
            kept = [array.copy() for array in first]
            for seed in range(2, 6):
                for array in session.run(None, model.feeds(seed, mask="none")):
                    assert not any(np.shares_memory(array, other) for other in first), "two runs share memory"
        for array, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array, copy, err_msg="a later run, or close(), changed a result")
            assert array.flags.writeable, "a result is the caller's, to write to as well"

    @proves("results")
    def test_feeds_stay_as_they_were(self) -> None:
        model = self.subject.bert()
        feeds = model.feeds()
        before = {name: array.copy() for name, array in feeds.items()}
        with self.subject.open(model) as session:
            session.run(None, feeds)
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, before[name], err_msg=f"a run changed its feed {name!r}")

    @proves("results")
    def test_a_result_is_no_feed(self) -> None:
        """A feed is its owner's to write to again: what was handed on as it is has memory of its own."""
        model = HandsOn("hands-on", False, 4)
        with self.subject.open(model) as session:
            feeds = model.feeds()
            for spec, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                shared = np.shares_memory(value, feeds["x"])
                assert not shared, f"the result {spec.name!r} lies in the memory of the feed 'x': give it a copy"
            self.subject.assert_right(model, session, feeds)

    @proves("results")
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_how_a_feed_lies_in_memory_does_not_matter(self, layout: str) -> None:
        model = dense()
        feeds = {"x": LAYOUTS[layout](model.feeds()["x"])}
        with self.subject.open(model) as session:
            self.subject.assert_right(model, session, feeds)

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much each thread computed")
    def test_one_thread_is_one_thread(self) -> None:
        self.subject.require(self.subject.capabilities.sets_threads, "a number of threads that can be set")
        if usable_cores() < 2:
            pytest.skip("with one core to use, there is nothing to keep to")
        model = dense("heavy")
        with self.subject.open(model, threads=1) as session:
            assert session.provenance.threads == 1
            busiest, total = _processor_time(session, model)
        assert total <= busiest * 1.3, (
            f"asked for one thread, it spent {total / busiest:.1f} times the processor time of its busiest thread"
        )

    @proves("threads")
    def test_a_number_of_threads_changes_no_answer(self) -> None:
        self.subject.require(self.subject.capabilities.sets_threads, "a number of threads that can be set")
        model = self.subject.bert("bert-2x128")
        for threads in (1, 2, usable_cores()):
            with self.subject.open(model, threads=threads) as session:
                assert session.provenance.threads == threads
                self.subject.assert_right(model, session, model.feeds())

    @proves("binding")
    def test_bound_inputs_are_read_anew_at_every_run(self) -> None:
        model = dense()
        with self.subject.open(model) as session:
            binding = session.io_binding()
            x = model.feeds(0)["x"]
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
            kept = []
            for seed in range(3):
                x[...] = model.feeds(seed)["x"]
                session.run_with_iobinding(binding)
                (y,) = binding.copy_outputs_to_cpu()
                kept.append(y)
            for seed, y in enumerate(kept):
                parity = self.subject.compare(model, session, model.feeds(seed), {"y": y})
                assert parity.verdict == "pass", f"run {seed} of a binding: {'; '.join(parity.reasons)}"

    @proves("binding")
    def test_outputs_are_written_to_the_memory_that_is_bound(self) -> None:
        model = dense()
        with self.subject.open(model) as session:
            feeds = model.feeds()
            y = np.full((4, 256), np.nan, np.float32)
            binding = _bound(session, feeds, y)
            session.run_with_iobinding(binding)
            parity = self.subject.compare(model, session, feeds, {"y": y})
            assert parity.verdict == "pass", f"what the memory holds is wrong: {'; '.join(parity.reasons)}"

    @proves("binding")
    def test_memory_of_another_shape_is_refused(self) -> None:
        model = dense()
        with self.subject.open(model) as session:
            memory = np.full((4, 256), np.nan, np.float32)  # of which less is bound than what there is room for
            binding = _bound(session, model.feeds(), memory[:2])
            with pytest.raises((InvalidFeeds, BackendFailed)):
                session.run_with_iobinding(binding)
            assert np.isnan(memory).all(), "memory of another shape was written to all the same"


def _bound(session: Session, feeds: dict[str, np.ndarray], y: np.ndarray) -> IOBinding:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    return binding


def _processor_time(session: Session, model: Sample) -> tuple[int, int]:
    """Processor time that the busiest thread and all together spent while the session ran, in ticks of the system.

    The one as a part of the other does not depend on what else the machine does.
    """
    feeds = model.feeds()
    session.run(None, feeds)
    (total_before, before), deadline = processor_ticks(), time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        pause = time.monotonic() + 0.2  # to look takes processor time too
        while time.monotonic() < pause:
            session.run(None, feeds)
        total, by_thread = processor_ticks()
        if total - total_before >= _TICKS:
            return max(ticks - before.get(thread, 0) for thread, ticks in by_thread.items()), total - total_before
    pytest.skip(f"{_SECONDS} s of runs took too little processor time to tell threads apart")
