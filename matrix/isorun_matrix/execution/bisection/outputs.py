"""Judging releases by their outputs, and naming the operator whose value differs first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from isorun.cli import parity_layers
from isorun.errors import IsorunError
from isorun.parity import Parity, Tolerance, compare
from isorun.types import ModelInfo
from isorun_matrix.execution.bisection.search import Found, Step
from isorun_matrix.execution.bisection.subject import Subject
from isorun_matrix.execution.processes.session import named
from isorun_matrix.execution.progress import Lines

Outputs = Mapping[str, Mapping[str, np.ndarray]]
"""Outputs by name, for each kind of mask."""


@dataclass(frozen=True)
class ByOutputs:
    """Judges a release: bad if its outputs differ from those of the good one, on five kinds of mask.

    Attributes:
        good: the release to compare with.
        tolerance: of the outputs.
    """

    subject: Subject
    good: str
    tolerance: Tolerance
    progress: Lines

    def __call__(self, release: str) -> Step:
        """Run both releases; raises ``IsorunError`` if the good one does not run the model."""
        expected = self._expected
        try:
            parities = self._compare(*self._run(release, self.subject.model), expected)
        except IsorunError as error:
            return Step(release, "skipped", str(error))
        worst = max(parity.as_dict()["max_rel"] or 0.0 for parity in parities.values())
        reasons = [f"{reason} (mask: {mask})" for mask, parity in parities.items() for reason in parity.reasons]
        if reasons:
            return Step(release, "bad", reasons[0])
        return Step(release, "good", f"max rel {worst:.2g} from {self.good}")

    def explain(self, result: Found) -> list[str]:
        """Where the first bad release departs first from the last good one, by the values of the fused operators."""
        self.progress.note(f"Comparing the operators of {result.last_good} and {result.first_bad}")
        try:
            with parity_layers.exposed(self.subject.model) as (path, operators):
                releases = (result.last_good, result.first_bad)
                (expected, _), run = (self._run(release, path, **parity_layers.SETTINGS) for release in releases)
                departure = parity_layers.first_departure(self._compare(*run, expected), operators)
        except IsorunError as error:
            return [f"Its operators cannot be compared: {error}"]
        if departure is None:
            return ["With the values of its fused operators as outputs, the model does not differ."]
        return [f"It differs first at {departure}"]

    @cached_property
    def _expected(self) -> Outputs:
        outputs, info = self._run(self.good, self.subject.model)
        for case, parity in self._compare(outputs, info, outputs).items():
            for reason in parity.reasons:
                raise IsorunError(f"{self.good}: its outputs cannot be compared with others: {reason} (mask: {case})")
        return outputs

    def _run(self, release: str, model: Path, **settings: Any) -> tuple[Outputs, ModelInfo]:
        with self.subject.open(release, self.progress, model, **settings) as session:
            cases = self.subject.cases(session.model_info)
            outputs = {case: named(session, session.run(None, feeds)) for case, feeds in cases.items()}
            return outputs, session.model_info

    def _compare(self, outputs: Outputs, info: ModelInfo, expected: Outputs) -> dict[str, Parity]:
        return {
            case: compare(
                outputs[case], expected[case], info.attended(feeds), self.tolerance, token_level=info.token_outputs
            )
            for case, feeds in self.subject.cases(info).items()
        }
