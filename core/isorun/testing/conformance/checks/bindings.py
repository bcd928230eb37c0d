"""Checks of io bindings to the host's memory."""

from __future__ import annotations

import numpy as np
import pytest

from isorun import IOBinding, Session
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.testing.conformance.checks.base import Checks, proves
from isorun.testing.conformance.sample_models import dense


class Bindings(Checks):
    """Bound inputs and outputs."""

    @proves("binding")
    def test_bound_inputs_are_read_at_every_run(self) -> None:
        model = dense()
        with self.under_test.open(model) as session:
            binding = session.io_binding()
            x = model.feeds(0)["x"]
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
            outputs = []
            for seed in range(3):
                x[...] = model.feeds(seed)["x"]
                session.run_with_iobinding(binding)
                outputs += binding.copy_outputs_to_cpu()
            for seed, y in enumerate(outputs):
                what = f"run {seed} of a binding"
                self.under_test.assert_accurate(model, session, model.feeds(seed), {"y": y}, what=what)

    @proves("binding")
    def test_outputs_are_written_to_bound_memory(self) -> None:
        model = dense()
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            y = np.full((4, 256), np.nan, np.float32)
            session.run_with_iobinding(_bound(session, feeds, y))
            self.under_test.assert_accurate(model, session, feeds, {"y": y}, what="the bound memory")

    @proves("binding")
    def test_bound_memory_of_another_shape_is_rejected(self) -> None:
        model = dense()
        with self.under_test.open(model) as session:
            memory = np.full((4, 256), np.nan, np.float32)
            binding = _bound(session, model.feeds(), memory[:2])
            with pytest.raises((InvalidFeeds, BackendFailed)):
                session.run_with_iobinding(binding)
            assert np.isnan(memory).all(), "bound memory of another shape was written to"


def _bound(session: Session, feeds: dict[str, np.ndarray], y: np.ndarray) -> IOBinding:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    return binding
