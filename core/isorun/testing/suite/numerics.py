"""Checks of answers: in every dialect and precision, on the five masks, in any shape, for models of every size."""

from __future__ import annotations

import numpy as np
import pytest

from isorun import Session
from isorun.errors import BackendUnavailable, IsorunError, UnsupportedModel
from isorun.testing.feeds import MASKS
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import BIG_SIZES, SIZES, Bert, bert, of_size
from isorun.testing.suite.subject import BIG_VARIABLE, Checks, named

_SHAPES = ((1, 1), (1, 7), (2, 5), (3, 9), (1, 40), (4, 16))


class Numerics(Checks):
    """Dialects, precisions, masks, shapes, sizes."""

    @proves("dialect {dialect}")
    def test_a_bert_in_every_declared_dialect(self, dialect: str) -> None:
        model = self.subject.bert()
        lowered = self.subject.lowered(model, dialect)
        with self.subject.compiled(lowered) as executable:
            outputs = [spec.name for spec in lowered.info.outputs]
            with self.subject.open(model, padding="keep") as session:  # for the shapes of outputs alone
                for mask in MASKS:
                    feeds = model.feeds(mask=mask)
                    found = dict(zip(outputs, executable.run(None, feeds), strict=True))
                    parity = self.subject.compare(model, session, feeds, found)
                    assert parity.verdict == "pass", f"in {dialect}, mask {mask}: {'; '.join(parity.reasons)}"

    @proves("dialect {dialect}")
    def test_a_last_layer_of_one_position_in_every_declared_dialect(self, dialect: str) -> None:
        model, wanted = self.subject.bert(), ["pooler_output"]
        lowered = self.subject.lowered(model, dialect, wanted)
        with (
            self.subject.compiled(lowered) as executable,
            self.subject.open(model, padding="keep", outputs=wanted) as session,
        ):
            for mask in MASKS:
                feeds = model.feeds(mask=mask)
                found = dict(zip(wanted, executable.run(None, feeds), strict=True))
                parity = self.subject.compare(model, session, feeds, found)
                assert parity.verdict == "pass", f"in {dialect}, mask {mask}: {'; '.join(parity.reasons)}"

    @proves("precision {precision}")
    def test_a_bert_in_every_declared_precision(self, precision: str) -> None:
        model = self.subject.bert("bert-2x128")
        with self.subject.open(model, precision=precision) as session:
            for mask in MASKS:
                self.subject.assert_right(model, session, model.feeds(mask=mask), self.subject.tolerance(precision))

    @proves("parity on the five masks")
    @pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
    @pytest.mark.parametrize("mask", MASKS)
    def test_parity_on_every_kind_of_mask(self, mask: str, padding: str) -> None:
        if padding == "remove":
            offers = self.subject.capabilities
            self.subject.require(offers.dynamic_shapes, "dynamic shapes, without which padding cannot be removed")
        model = self.subject.bert()
        for outputs in (None, ["pooler_output"]):
            with self.subject.open(model, padding=padding, outputs=outputs) as session:
                for seed in range(3):
                    self.subject.assert_right(model, session, model.feeds(seed, mask=mask))

    @proves("dynamic shapes")
    def test_shapes_change_from_run_to_run(self) -> None:
        self.subject.require(self.subject.capabilities.dynamic_shapes, "dynamic shapes")
        model = bert(dynamic=True)
        with self.subject.open(model) as session:
            for batch, sequence in (*_SHAPES, *reversed(_SHAPES)):
                self.subject.assert_right(model, session, model.feeds(batch=batch, sequence=sequence))

    @proves("fixed shapes")
    def test_a_model_of_fixed_shapes(self) -> None:
        model = bert(dynamic=False)
        with self.subject.open(model) as session:
            for seed in range(3):
                self.subject.assert_right(model, session, model.feeds(seed))

    @proves("fixed shapes")
    def test_without_dynamic_shapes_a_symbolic_model_is_refused_or_right(self) -> None:
        if self.subject.capabilities.dynamic_shapes:
            pytest.skip("does not apply: it declares dynamic shapes")
        model = bert(dynamic=True)
        try:
            session = self.subject.open(model)
        except (BackendUnavailable, UnsupportedModel) as error:
            refusal = str(error)
        else:
            self._assert_right_or_refused(model, session)
            return
        assert "shape" in refusal or "dimension" in refusal, f"the refusal does not say why: {refusal}"

    def _assert_right_or_refused(self, model: Bert, session: Session) -> None:
        with session:
            for batch, sequence in _SHAPES:
                feeds = model.feeds(batch=batch, sequence=sequence)
                try:
                    outputs = session.run(None, feeds)
                except IsorunError:
                    continue  # a shape that it does not take, and says so
                parity = self.subject.compare(model, session, feeds, named(session, outputs))
                assert parity.verdict == "pass", f"{batch} x {sequence}: {'; '.join(parity.reasons)}"

    @proves("model {size}")
    @pytest.mark.parametrize("size", [*SIZES, *BIG_SIZES])
    def test_models_of_every_size(self, size: str) -> None:
        if size in BIG_SIZES and not self.subject.big:
            pytest.skip(f"takes minutes: `isorun conformance {self.subject.name} --big` or {BIG_VARIABLE}=1 runs it")
        model = of_size(size, dynamic=self.subject.capabilities.dynamic_shapes)
        with self.subject.open(model) as session:
            for seed in range(2):
                self.subject.assert_right(model, session, model.feeds(seed))

    @proves("results")
    def test_a_repeated_run_gives_the_same(self) -> None:
        model = self.subject.bert()
        with self.subject.open(model) as session:
            first = session.run(None, model.feeds(1))
            session.run(None, model.feeds(2))
            for one, other in zip(first, session.run(None, model.feeds(1)), strict=True):
                np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
