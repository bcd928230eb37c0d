"""Several executables of one model, one of which every run chooses by its feeds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isorun.plugin.backend import Binding, Executable
from isorun.types import Feeds, ModelInfo


class Choice(Executable):
    """An executable that chooses another one for every run.

    Args:
        info: the model.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._mask = info.mask
        self._by_token = frozenset(info.token_outputs or ())

    @abstractmethod
    def choose(self, feeds: Feeds) -> Any:
        """The executable for these feeds."""

    @abstractmethod
    def finish(self, chosen: Any, output_names: Sequence[str], results: list[Any], feeds: Feeds) -> list[Any]:
        """What to return for the results of the chosen executable."""

    def without_padding(self, output_names: Sequence[str], results: list[Any], feeds: Feeds) -> list[Any]:
        """Set results to zero at padding, in place."""
        mask = None if self._mask is None else feeds.get(self._mask)
        if mask is not None:
            for name, result in zip(output_names, results, strict=True):
                if name in self._by_token:
                    result[mask == 0] = 0
        return results

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        return _ChoosingBinding(self, feeds, outputs)


class _ChoosingBinding(Binding):
    """Chooses at every run, since the contents of feeds may change. All bindings write to the same arrays."""

    def __init__(self, choice: Choice, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> None:
        super().__init__(choice, feeds, outputs)
        self._choice = choice
        self._bound: dict[Executable, Binding] = {}

    def run(self) -> list[Any]:
        chosen = self._choice.choose(self._feeds)
        if chosen not in self._bound:
            self._bound[chosen] = chosen.bind(self._feeds, self._outputs)
        return self._choice.finish(chosen, list(self._outputs), self._bound[chosen].run(), self._feeds)
