"""Checks of arrays that stay on a device. A device's memory is not read here: what was left there is fed to a run whose
outputs come back to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from isorun import Session
from isorun.plugin.device_arrays import DeviceArray
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import Sample, dense
from isorun.testing.suite.subject import Checks


class Devices(Checks):
    """Feeds and outputs in a device's memory."""

    @proves("device arrays")
    def test_an_output_left_on_the_device_can_be_fed(self) -> None:
        model = self._model()
        with self.subject.open(model) as session:
            (left,) = session.run(None, model.feeds(), device_outputs=True)
            _assert_on_device(left, (model.batch, 256))
            self._assert_right_of(model, session, left, seed=0)

    @proves("device arrays")
    def test_no_later_run_changes_what_was_left_on_the_device(self) -> None:
        model = self._model()
        with self.subject.open(model) as session:
            kept = [session.run(None, model.feeds(seed), device_outputs=True)[0] for seed in range(3)]
            session.run(None, model.feeds(3))
            for seed, left in enumerate(kept):
                self._assert_right_of(model, session, left, seed)

    @proves("device arrays")
    def test_a_binding_takes_and_leaves_arrays_of_the_device(self) -> None:
        model = self._model()
        with self.subject.open(model) as session:
            (left,) = session.run(None, model.feeds(), device_outputs=True)
            binding = session.io_binding()
            binding.bind_device_input("x", left)
            binding.bind_output("y", "cuda")
            session.run_with_iobinding(binding)
            (again,) = [output.value() for output in binding.get_outputs()]
            _assert_on_device(again, (model.batch, 256))
            x = self._expected(model, self._expected(model, model.feeds()["x"]))
            self._assert_right_for(model, session, again, x)

    def _model(self) -> Sample:
        """One whose output can be its input."""
        self.subject.require(self.subject.capabilities.device_arrays, "arrays that stay on a device")
        return dense()

    def _expected(self, model: Sample, x: np.ndarray) -> np.ndarray:
        return self.subject.expected(model, {"x": x})["y"].astype(np.float32)

    def _assert_right_of(self, model: Sample, session: Session, left: Any, seed: int) -> None:
        """What a run on that seed's feeds left behind."""
        self._assert_right_for(model, session, left, self._expected(model, model.feeds(seed)["x"]))

    def _assert_right_for(self, model: Sample, session: Session, left: Any, x: np.ndarray) -> None:
        """What was left behind is x, as a run on it shows."""
        (y,) = session.run(None, {"x": left})
        assert isinstance(y, np.ndarray), f"without device_outputs, y is a {type(y).__name__}"
        parity = self.subject.compare(model, session, {"x": x}, {"y": y})
        assert parity.verdict == "pass", f"fed from the device, it is wrong: {'; '.join(parity.reasons)}"


def _assert_on_device(array: Any, shape: tuple[int, ...]) -> None:
    assert isinstance(array, DeviceArray), f"asked to stay on the device, y is a {type(array).__name__}"
    assert array.shape == shape, f"y is {array.shape}, not {shape}"
    assert array.dtype == np.float32, f"y is of {array.dtype}, not float32"
