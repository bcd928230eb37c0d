"""Checks of arrays that stay on a device. To see what they hold, they are fed to a run whose outputs are copied to the
host."""

from __future__ import annotations

from typing import Any

import numpy as np

from isorun import Session
from isorun.plugin.device_arrays import DeviceArray
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.sample_models import SampleModel, dense


class DeviceArrays(Checks):
    """Feeds and outputs in a device's memory."""

    @proves("device arrays")
    def test_output_on_the_device_can_be_fed(self) -> None:
        model = self._model()
        with self.under_test.open(model) as session:
            (array,) = session.run(None, model.feeds(), device_outputs=True)
            self._assert_output(model, session, array, model.feeds()["x"])

    @proves("device arrays")
    def test_no_later_run_changes_an_output_on_the_device(self) -> None:
        model = self._model()
        with self.under_test.open(model) as session:
            kept = [session.run(None, model.feeds(seed), device_outputs=True)[0] for seed in range(3)]
            session.run(None, model.feeds(3))
            for seed, array in enumerate(kept):
                self._assert_output(model, session, array, model.feeds(seed)["x"])

    @proves("device arrays")
    def test_binding_of_arrays_on_the_device(self) -> None:
        model = self._model()
        with self.under_test.open(model) as session:
            (array,) = session.run(None, model.feeds(), device_outputs=True)
            binding = session.io_binding()
            binding.bind_device_input("x", array)
            binding.bind_output("y", "cuda")
            session.run_with_iobinding(binding)
            (output,) = [output.value() for output in binding.get_outputs()]
            self._assert_output(model, session, output, self._expected(model, model.feeds()["x"]))

    def _model(self) -> SampleModel:
        """One whose output has the shape of its input."""
        self.under_test.require(self.under_test.capabilities.device_arrays, "arrays that stay on a device")
        return dense()

    def _expected(self, model: SampleModel, x: np.ndarray) -> np.ndarray:
        return self.under_test.expected(model, {"x": x})["y"].astype(np.float32)

    def _assert_output(self, model: SampleModel, session: Session, array: Any, x: np.ndarray) -> None:
        """An array is on the device and holds the model's output for ``x``."""
        assert isinstance(array, DeviceArray), f"y must stay on the device as a DeviceArray, got {type(array).__name__}"
        assert array.shape == x.shape, f"y must have shape {x.shape}, got {array.shape}"
        assert array.dtype == np.float32, f"y must be float32, got {array.dtype}"
        (y,) = session.run(None, {"x": array})
        assert isinstance(y, np.ndarray), f"without device_outputs, y must be an array, got {type(y).__name__}"
        feeds = {"x": self._expected(model, x)}
        self.under_test.assert_accurate(model, session, feeds, {"y": y}, what="the output for a feed on the device")
