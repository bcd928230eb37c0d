"""Feeds to warm up with."""

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


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize(
    "signature",
    [
        "g (float s) => (float y) { y = Neg (s) }",
        "g (float s, float[N, M] x) => (float[N, M] y) { y = Mul (s, x) }",
        "g (float[0, 3] x) => (float[0, 3] y) { y = Neg (x) }",
        "g (string[N, 2] t, float s) => (string[N, 2] y, float z) { y = Identity (t)  z = Neg (s) }",
    ],
)
def test_inputs_of_any_rank_and_of_strings(backend: str, signature: str) -> None:
    with isorun.Session(onnx_text.graph(signature), backend) as session:
        session.warmup()


@pytest.mark.parametrize(
    ("shape", "problem"),
    [((1, 41), "at most 40 tokens in a row"), ((1, 10**30), "at most 40"), ((10**9, 40), "at most 1,073,741,824 tok")],
)
def test_rejects_shapes_above_the_limits(bert: Path, shape: tuple[int, int], problem: str) -> None:
    with isorun.Session(bert, "ort-cpu") as session:
        session.warmup([(1, 40)], measure=False)
        with pytest.raises(isorun.InvalidFeeds, match=problem):
            session.warmup([shape], measure=False)


def test_says_what_to_do_about_sizes_that_are_unknown() -> None:
    model = onnx_text.graph("g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Neg (x) }")
    with isorun.Session(model, "ort-cpu") as session:
        with pytest.raises(isorun.InvalidFeeds, match=r"'H'\) has no size\. To warm up .*: warmup\(\[feeds\]\)"):
            session.warmup()
        session.warmup([{"x": np.zeros((1, 3, 4, 4), np.float32)}])


@pytest.mark.parametrize("size", ["N", "3"])
def test_models_without_a_sequence(size: str) -> None:
    model = onnx_text.graph(f"g (float[{size}] x) => (float[{size}] y) {{ y = Neg (x) }}")
    with isorun.Session(model, "ort-cpu") as session:
        session.warmup(measure=False)
        with pytest.raises(isorun.InvalidFeeds, match="sequence 16"):
            session.warmup([(3, 16)], measure=False)
