"""Checks of shapes: any number of rows and any length in every precision, fixed shapes, and empty batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isorun.errors import IsorunError
from isorun.parity import DEFAULT_TOLERANCES
from isorun_conformance.backend_under_test import named
from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.formulas import four_outputs
from isorun_conformance.precisions import ERRORS
from isorun_conformance.sample_models import MASK_KINDS, dense, encoder

# Kernels change at powers of two and at multiples of the vector length, and buffers grow: every small size, and the
# sizes around multiples of 64.
_LENGTHS = (
    *range(1, 34),
    *(length + step for length in range(64, 513, 64) for step in (-1, 0, 1) if length + step < 513),
)
_SHAPES = (
    *((1, 1), (2, 1), (64, 6), (1, 129), (1, 512)),  # what most often goes wrong is tested first
    *((rows, 6) for rows in range(1, 64)),
    *((rows, length) for length in (*_LENGTHS, 40, 48, 50, 80, 96, 100, 200, 300, 400, 500) for rows in (1, 2)),
    *((4, 128), (8, 65), (9, 129), (16, 64), (17, 33), (32, 32), (33, 17), (64, 20)),
    *((65, 6), (100, 3), (128, 4), (257, 2), (1025, 3), (2049, 1), (32, 128), (300, 16)),
)
# Of ten thousand tokens, the worst is worse than that of a few; a mask may leave two to compare.
_TOLERANCES = {"int8": replace(DEFAULT_TOLERANCES["int8"], max_rel=None, rms=0.3, cosine=0.9, argmax=None)}
_FIXED = ((1, 1), (3, 12), (16, 9), (64, 6), (1, 129), (1, 512))
_FEW = ((1, 1), (1, 7), (2, 5), (3, 9), (1, 40), (4, 16))


class Shapes(Checks):
    """Rows and lengths."""

    @proves("dynamic shapes")
    @pytest.mark.parametrize("padding", ["keep", "remove"])
    def test_accuracy_at_every_shape(self, precision: str, padding: str) -> None:
        """Every shape has other feeds and another kind of mask; none has been run before."""
        self._require_dynamic()
        if padding == "remove":
            self.under_test.require_padding_removal()
        model = encoder("bert-1x32", dynamic=True)
        masks = list(MASK_KINDS)
        with self.under_test.open(model, precision=precision, padding=padding) as session:
            for number, (batch, sequence) in enumerate(_SHAPES):
                mask = masks[number % len(masks)] if batch > 1 else "right"
                feeds = model.feeds(number, batch=batch, sequence=sequence, mask=mask)
                what = f"{batch} x {sequence} in {precision}, mask {mask},"
                parity = self.under_test.assert_accurate(
                    model, session, feeds, precision=precision, tolerance=_TOLERANCES.get(precision), what=what
                )
                errors = [output.rms for output in parity.outputs if output.rms is not None]
                minimum = ERRORS.get(precision, (0.0, 1.0))[0] / 10
                assert max(errors) >= minimum, (
                    f"{what} was not computed in {precision}: the relative error (root mean square) is "
                    f"{max(errors):.1e}, expected at least {minimum:.0e}"
                )

    @proves("dynamic shapes")
    def test_shapes_may_change_between_runs(self) -> None:
        """Back to a shape that was run before, and from one to another that differs in one dimension only."""
        self._require_dynamic()
        model = encoder(dynamic=True)
        with self.under_test.open(model) as session:
            for seed in range(2):
                for batch, sequence in (*_FEW, *reversed(_FEW)):
                    feeds = model.feeds(seed, batch=batch, sequence=sequence)
                    self.under_test.assert_accurate(model, session, feeds)

    @proves("dynamic shapes")
    def test_empty_batch_is_right_or_rejected(self) -> None:
        self._require_dynamic()
        model = four_outputs(dynamic=True)
        feeds = model.feeds(rows=0)
        with self.under_test.open(model) as session:
            try:
                outputs = session.run(None, feeds)
            except IsorunError:
                outputs = None
            if outputs is not None:
                for name, array in named(session, outputs).items():
                    assert np.shape(array) == (0, 3), f"for no rows, {name} must have shape (0, 3), got {array.shape}"
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("fixed shapes")
    @pytest.mark.parametrize("shape", _FIXED, ids=lambda shape: "x".join(map(str, shape)))
    def test_model_of_fixed_shapes(self, shape: tuple[int, int]) -> None:
        model = encoder(dynamic=False, shape=shape)
        with self.under_test.open(model) as session:
            for seed, mask in enumerate(MASK_KINDS if shape[0] > 1 else ["none", "right", "left"]):
                self.under_test.assert_accurate(model, session, model.feeds(seed, mask=mask))

    @proves("not a number")
    def test_nan_stays_in_its_row(self) -> None:
        """Also in the next run, whose feeds have none."""
        model = dense()
        with self.under_test.open(model) as session:
            expected = self.under_test.expected(model, model.feeds())["y"]
            for value in (np.nan, np.inf):
                feeds = model.feeds()
                feeds["x"][1, 2] = value
                (y,) = session.run(None, feeds)
                others = np.arange(len(y)) != 1
                error = np.abs(y - expected)[others].max()
                assert error < 0.1, (
                    f"with {value} in one row of the feed, another row of the output is wrong"
                )  # NaN: False
                assert not np.isnan(value) or np.isnan(y[1]).all(), "a NaN in the feed did not reach the output"
            self.under_test.assert_accurate(model, session, model.feeds(), what="the run after one with NaN")

    @proves("unusual values")
    def test_tokens_and_types_at_their_limits(self) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            for name, value in (("input_ids", 0), ("input_ids", model.vocabulary - 1), ("token_type_ids", 1)):
                feeds = model.feeds()
                feeds[name][...] = value
                self.under_test.assert_accurate(model, session, feeds, what=f"{name} all {value}")

    @proves("unusual values")
    @pytest.mark.parametrize("padding", ["keep", "auto"])
    def test_batch_of_nothing_but_padding_is_finite(self, padding: str) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model, padding=padding) as session:
            feeds = model.feeds()
            feeds["attention_mask"][...] = 0
            for name, array in named(session, session.run(None, feeds)).items():
                assert np.isfinite(array).all(), f"{name} is not finite for a batch of nothing but padding"
            self.under_test.assert_accurate(model, session, model.feeds(), what="the run after one of padding")

    @proves("unusual values")
    def test_infinity_is_kept(self) -> None:
        """Where arithmetic gives it, and beside ordinary values and a negative zero."""
        model = four_outputs(dynamic=False)
        feeds = model.feeds()
        feeds["x"][[0, 1, 2], [0, 1, 2]] = np.inf, -np.inf, -0.0
        expected = self.under_test.expected(model, feeds)
        with self.under_test.open(model) as session:
            for name, array in named(session, session.run(None, feeds)).items():
                what = f"{name} is wrong where a feed is infinite"
                np.testing.assert_allclose(array, expected[name], rtol=1e-2, atol=1e-2, err_msg=what)

    @proves("unusual values")
    @pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1e-3, 30.0, 1e4, 1e12, 1e30])
    def test_feeds_of_any_magnitude(self, scale: float) -> None:
        precision = self.under_test.capabilities.precisions[0]
        if precision == "fp16":
            pytest.skip(f"{DOES_NOT_APPLY}: fp16 does not represent {scale:g}")
        model = dense("one-node")
        with self.under_test.open(model) as session:
            feeds = {"x": model.feeds()["x"] * np.float32(scale)}
            self.under_test.assert_accurate(model, session, feeds, what=f"feeds of magnitude {scale:g}")

    def _require_dynamic(self) -> None:
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
