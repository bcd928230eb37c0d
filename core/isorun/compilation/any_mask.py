"""Masks with other values than 0 and 1: segment ids, negative numbers, fractions.

A fused attention attends to every key whose mask is not 0. What the original model does with other values than 0 and 1
is its own: it may compare the segments of a query and a key, or add ``(1 - mask) * minimum`` to scores. Feeds with such
values therefore run the model as given. It is compiled when the first of them arrives.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isorun.compilation.choice import Choice
from isorun.errors import InvalidFeeds
from isorun.models.feeds import is_binary, other_value
from isorun.plugin.backend import Executable
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import Feeds, ModelInfo, RuntimeReport

_logger = logging.getLogger("isorun")


class AnyMask(Choice):
    """A fused model, and the same as given. The values of the masks of each run decide between them.

    Args:
        fused: the fused model.
        compile_given: compiles the other one. Called by the first run that needs it.
        info: the fused model's.
        zeros: whether token outputs are zero at padding.
        refusal: why the model cannot be run as given; empty where it can.
    """

    def __init__(
        self,
        fused: Executable,
        compile_given: Callable[[], Executable],
        info: ModelInfo,
        *,
        zeros: bool = False,
        refusal: str = "",
    ) -> None:
        super().__init__(info)
        self._fused: Any = fused  # with any optional abilities
        self._compile_given = compile_given
        self._given: Any = None
        self._masks = info.masks
        self._zeros = zeros
        self._refusal = refusal
        self._lock = threading.Lock()

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        chosen = self.choose(feeds)
        results: list[Any] = chosen.run(output_names, feeds)
        return results if chosen is self._fused else self.finish(chosen, output_names, results, feeds)

    def choose(self, feeds: Feeds) -> Any:
        for name in self._masks:
            mask = feeds.get(name)
            if type(mask) is np.ndarray and not is_binary(mask):  # masks on a GPU are not read
                return self._as_given(name, mask)
        return self._fused

    def finish(self, chosen: Any, output_names: Sequence[str], results: list[Any], feeds: Feeds) -> list[Any]:
        if chosen is self._fused or not self._zeros:
            return results
        return self.without_padding(output_names, results, feeds)

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        chosen = self.choose(feeds)
        if chosen is not self._fused and self._zeros and not self._by_token.isdisjoint(output_names):
            raise InvalidFeeds(
                f"{_only_binary(self._masks)} with device_outputs=True and padding='remove'. Copy the outputs to the "
                "host, or use padding='keep'"
            )
        results: list[DeviceArray] = chosen.run_on_device(output_names, feeds)
        return results

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        times: np.ndarray | None = self.choose(feeds).device_times(feeds, runs)
        return times

    def report(self) -> RuntimeReport:
        report: RuntimeReport = self._fused.report()
        if self._given is None:
            return report
        note = {"values": "other than 0 and 1 run the model as given", "operators": self._given.report().operators}
        return replace(report, details={**report.details, "mask": note})

    def close(self) -> None:
        try:
            self._fused.close()
        finally:
            if self._given is not None:
                self._given.close()

    def _as_given(self, name: str, mask: np.ndarray) -> Any:
        if self._refusal:
            raise InvalidFeeds(f"{_only_binary([name])} {self._refusal}, {other_value(mask)}")
        with self._lock:
            if self._given is None:
                _logger.info("the model is compiled as given: %r has other values than 0 and 1", name)
                self._given = self._compile_given()
            return self._given


def _only_binary(names: Sequence[str]) -> str:
    return f"Input {' and '.join(map(repr, names))} must contain 1 for real tokens and 0 for padding"
