"""Checks of accuracy: every dialect and precision, every kind of mask, models of every size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from isorun.parity.samples import MASKS
from isorun.types import Dialect
from isorun_conformance.checks.base import BIG_VARIABLE, Checks, proves
from isorun_conformance.sample_models import BIG_SIZES, LATER, MASK_KINDS, SIZES, of_size

_LONG = 1030
"""Tokens: more than BERT has positions for."""


class Accuracy(Checks):
    """Dialects, precisions, masks, sizes."""

    @proves("dialect {dialect}")
    # A single output reads one position of the last layer, whose attention has fewer queries than keys.
    @pytest.mark.parametrize("outputs", [None, ["pooler_output"]], ids=["all outputs", "one position"])
    def test_accuracy_in_every_dialect(self, dialect: str, outputs: list[str] | None) -> None:
        model = self.under_test.encoder()
        lowered = self.under_test.lowered(model, dialect, outputs)
        if isinstance(dialect, Dialect):
            base = self.under_test.lowered(model, dialect.base, outputs)
            assert _operators(lowered.path) != _operators(base.path), (
                f"no node of {model} uses a function of the dialect {str(dialect)!r}: a function that does not declare "
                "an input or an attribute of a node is skipped for it (num_heads and mask_filter_value are on each)"
            )
        names = lowered.info.output_names
        with (
            self.under_test.compiled(lowered) as executable,
            # For the shapes of the outputs only.
            self.under_test.open(model, padding="keep", outputs=outputs) as session,
        ):
            for mask in MASK_KINDS:
                feeds = model.feeds(mask=mask)
                results = dict(zip(names, executable.run(names, feeds), strict=True))
                what = f"{model} in {dialect}, mask {mask},"
                self.under_test.assert_accurate(model, session, feeds, results, what=what)

    @proves("dialect {dialect}")
    @pytest.mark.parametrize("encoder", LATER)
    def test_later_encoders_in_every_dialect(self, dialect: str, encoder: str) -> None:
        model = self.under_test.encoder(encoder)
        lowered = self.under_test.lowered(model, dialect)
        names = lowered.info.output_names
        with self.under_test.compiled(lowered) as executable, self.under_test.open(model) as session:
            for mask in MASKS:
                feeds = model.feeds(mask=mask)
                outputs = dict(zip(names, executable.run(names, feeds), strict=True))
                self.under_test.assert_accurate(
                    model, session, feeds, outputs, what=f"{model} in {dialect}, mask {mask},"
                )
                self.under_test.assert_accurate(model, session, feeds)
            if self.under_test.capabilities.dynamic_shapes:  # positions and distances beyond the first few
                for batch, sequence in ((2, 100), (1, _LONG)):
                    what = f"{model} of {batch} x {sequence} tokens"
                    feeds = model.feeds(batch=batch, sequence=sequence)
                    self.under_test.assert_accurate(model, session, feeds, what=what)

    @proves("precision {precision}")
    @pytest.mark.parametrize("padding", ["keep", "auto"])
    def test_accuracy_in_every_precision(self, precision: str, padding: str) -> None:
        model = self.under_test.encoder("bert-2x128")
        with self.under_test.open(model, precision=precision, padding=padding) as session:
            for seed, mask in enumerate(MASK_KINDS):
                what = f"{model} in {precision}, mask {mask},"
                feeds = model.feeds(seed, mask=mask)
                self.under_test.assert_accurate(model, session, feeds, precision=precision, what=what)

    @proves("every mask")
    @pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
    @pytest.mark.parametrize("mask", MASK_KINDS)
    def test_accuracy_with_every_mask(self, mask: str, padding: str) -> None:
        if padding == "remove":
            self.under_test.require_padding_removal()
        model = self.under_test.encoder()
        for outputs in (None, ["pooler_output"]):
            with self.under_test.open(model, padding=padding, outputs=outputs) as session:
                for seed in range(3):
                    self.under_test.assert_accurate(model, session, model.feeds(seed, mask=mask))

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
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            first = session.run(None, model.feeds(1))
            session.run(None, model.feeds(2))
            for array, expected in zip(session.run(None, model.feeds(1)), first, strict=True):
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


def _operators(path: Path) -> Counter[tuple[str, str]]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return Counter((node.domain, node.op_type) for node in graph.node)
