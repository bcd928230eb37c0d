"""Checks of accuracy: every dialect and precision, the five masks, any shape, models of every size."""

from __future__ import annotations

import numpy as np
import pytest

from isorun import Session
from isorun.errors import BackendUnavailable, IsorunError, UnsupportedModel
from isorun.parity.samples import MASKS
from isorun.testing.conformance.backend_under_test import named
from isorun.testing.conformance.checks.base import BIG_VARIABLE, DOES_NOT_APPLY, Checks, proves
from isorun.testing.conformance.sample_models import BIG_SIZES, SIZES, Bert, bert, of_size

_SHAPES = ((1, 1), (1, 7), (2, 5), (3, 9), (1, 40), (4, 16))


class Accuracy(Checks):
    """Dialects, precisions, masks, shapes, sizes."""

    @proves("dialect {dialect}")
    # A single output reads one position of the last layer, whose attention has fewer queries than keys.
    @pytest.mark.parametrize("outputs", [None, ["pooler_output"]], ids=["all outputs", "one position"])
    def test_accuracy_in_every_dialect(self, dialect: str, outputs: list[str] | None) -> None:
        model = self.under_test.bert()
        lowered = self.under_test.lowered(model, dialect, outputs)
        names = [spec.name for spec in lowered.info.outputs]
        with (
            self.under_test.compiled(lowered) as executable,
            # For the shapes of the outputs only.
            self.under_test.open(model, padding="keep", outputs=outputs) as session,
        ):
            for mask in MASKS:
                feeds = model.feeds(mask=mask)
                found = dict(zip(names, executable.run(names, feeds), strict=True))
                what = f"{model} in {dialect}, mask {mask},"
                self.under_test.assert_accurate(model, session, feeds, found, what=what)

    @proves("precision {precision}")
    def test_accuracy_in_every_precision(self, precision: str) -> None:
        model = self.under_test.bert("bert-2x128")
        with self.under_test.open(model, precision=precision) as session:
            for mask in MASKS:
                self.under_test.assert_accurate(model, session, model.feeds(mask=mask), precision=precision)

    @proves("parity on the five masks")
    @pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
    @pytest.mark.parametrize("mask", MASKS)
    def test_accuracy_with_every_mask(self, mask: str, padding: str) -> None:
        if padding == "remove":
            dynamic = self.under_test.capabilities.dynamic_shapes
            self.under_test.require(dynamic, "dynamic shapes, which padding removal needs")
        model = self.under_test.bert()
        for outputs in (None, ["pooler_output"]):
            with self.under_test.open(model, padding=padding, outputs=outputs) as session:
                for seed in range(3):
                    self.under_test.assert_accurate(model, session, model.feeds(seed, mask=mask))

    @proves("dynamic shapes")
    def test_shapes_may_change_between_runs(self) -> None:
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        model = bert(dynamic=True)
        with self.under_test.open(model) as session:
            for batch, sequence in (*_SHAPES, *reversed(_SHAPES)):
                self.under_test.assert_accurate(model, session, model.feeds(batch=batch, sequence=sequence))

    @proves("fixed shapes")
    def test_model_of_fixed_shapes(self) -> None:
        model = bert(dynamic=False)
        with self.under_test.open(model) as session:
            for seed in range(3):
                self.under_test.assert_accurate(model, session, model.feeds(seed))

    @proves("fixed shapes")
    def test_symbolic_model_without_dynamic_shapes_is_refused_or_accurate(self) -> None:
        if self.under_test.capabilities.dynamic_shapes:
            pytest.skip(f"{DOES_NOT_APPLY}: the backend declares dynamic shapes")
        model = bert(dynamic=True)
        try:
            session = self.under_test.open(model)
        except (BackendUnavailable, UnsupportedModel) as error:
            refusal = str(error)
        else:
            self._assert_accurate_or_refused(model, session)
            return
        assert "shape" in refusal or "dimension" in refusal, f"the refusal does not mention the shapes: {refusal}"

    def _assert_accurate_or_refused(self, model: Bert, session: Session) -> None:
        with session:
            for batch, sequence in _SHAPES:
                feeds = model.feeds(batch=batch, sequence=sequence)
                try:
                    outputs = session.run(None, feeds)
                except IsorunError:
                    continue
                what = f"{model} at {batch} x {sequence}"
                self.under_test.assert_accurate(model, session, feeds, named(session, outputs), what=what)

    @proves("model {size}")
    @pytest.mark.parametrize("size", [*SIZES, *BIG_SIZES])
    def test_models_of_every_size(self, size: str) -> None:
        if size in BIG_SIZES and not self.under_test.big:
            name = self.under_test.name
            pytest.skip(f"takes minutes; run it with `isorun conformance {name} --big` or {BIG_VARIABLE}=1")
        model = of_size(size, dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open(model) as session:
            for seed in range(2):
                self.under_test.assert_accurate(model, session, model.feeds(seed))

    @proves("results")
    def test_repeated_run_returns_the_same(self) -> None:
        model = self.under_test.bert()
        with self.under_test.open(model) as session:
            first = session.run(None, model.feeds(1))
            session.run(None, model.feeds(2))
            for array, expected in zip(session.run(None, model.feeds(1)), first, strict=True):
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
