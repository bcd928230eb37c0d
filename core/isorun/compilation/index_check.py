"""Executables of graphs that count indices outside their tables (:mod:`isorun.graph.transforms.index_checks`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.plugin.backend import Binding, Executable, SupportsBinding, SupportsDeviceTimes
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.types import INDEX_ERRORS, INDEX_NOTE, Feeds, LoweredModel, RuntimeReport, TensorSpec


def with_counts(model: LoweredModel) -> LoweredModel:
    """A lowered model with the counts among its outputs, if it has any."""
    checked = model.notes.get(INDEX_NOTE)
    if not checked:
        return model
    counts = TensorSpec(INDEX_ERRORS, "tensor(int64)", (len(checked),))
    return replace(model, info=replace(model.info, outputs=(*model.info.outputs, counts)))


class IndexChecked(Executable):
    """An executable whose runs raise an error if an index was outside its table.

    Args:
        executable: of a graph with counts.
        checked: what they count.
    """

    def __init__(self, executable: Executable, checked: Sequence[str]) -> None:
        self._executable: Any = executable  # with any optional abilities
        self._checked = checked

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        return self.checked(self._executable.run([*output_names, INDEX_ERRORS], feeds))

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        return self.bind(feeds, dict.fromkeys(output_names, ON_DEVICE)).run()  # type: ignore[arg-type]

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        extended = {**outputs, INDEX_ERRORS: None}
        if isinstance(self._executable, SupportsBinding):
            return _CheckedBinding(self, self._executable.bind(feeds, extended))
        return _CheckedBinding(self, Binding(self._executable, feeds, extended))

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        if not isinstance(self._executable, SupportsDeviceTimes):
            return None
        return self._executable.device_times(feeds, runs)

    def report(self) -> RuntimeReport:
        report: RuntimeReport = self._executable.report()
        return report

    def close(self) -> None:
        self._executable.close()

    def checked(self, results: list[Any]) -> list[Any]:
        """Results without the counts.

        Raises:
            InvalidFeeds: an index was outside its table.
        """
        if type(results) is not list or not results:
            return results  # the caller reports it
        counts = results.pop()
        # argmax and item take less time than any
        if counts.item(counts.argmax()):
            what = self._checked[int(np.argmax(counts != 0))]
            raise InvalidFeeds(
                f"{what} is outside its table in {int(counts.max())} places for these feeds. Check that ids are those "
                "of this model, and that no row is longer than it accepts"
            )
        return results


class _CheckedBinding(Binding):
    def __init__(self, executable: IndexChecked, bound: Binding) -> None:
        self._checked, self._bound = executable.checked, bound

    def run(self) -> list[Any]:
        return self._checked(self._bound.run())
