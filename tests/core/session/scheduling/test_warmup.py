"""Feeds to warm up with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isorun
import onnx_text
import small_bert
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.models.feeds import FeedChecker
from isorun.models.source import open_model
from isorun.session.scheduling import warmup
from isorun.system.cache import Cache


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_masks_of_every_form_that_selects_a_kernel(tmp_path: Path, device: str) -> None:
    cache = Cache(tmp_path / "cache")
    graphs = Compiler(open_model(small_bert.write(tmp_path / "model.onnx"), cache), Options(), cache).graphs
    feeds, _, others = warmup.feeds(graphs, FeedChecker(graphs.info), [(4, 8)], device)
    masks = [sample["attention_mask"] != 0 for sample in (*feeds, *others)]
    assert any(mask.all() for mask in masks)
    assert any(mask[:, 0].all() and not mask.all() for mask in masks), "padding on the right"
    on_gpu = device == "cuda"
    assert any(mask[:, -1].all() and not mask.all() for mask in masks) == on_gpu, "padding on the left"
    assert any(not np.any(mask, axis=1).all() for mask in masks) == on_gpu, "a row without a token"


@pytest.mark.parametrize("size", ["N", "3"])
def test_models_without_a_sequence(size: str) -> None:
    model = onnx_text.graph(f"g (float[{size}] x) => (float[{size}] y) {{ y = Neg (x) }}")
    with isorun.Session(model, "ort-cpu") as session:
        session.warmup(measure=False)
        with pytest.raises(isorun.InvalidFeeds, match="sequence 16"):
            session.warmup([(3, 16)], measure=False)
