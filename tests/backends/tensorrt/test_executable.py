"""Building, caching and choosing engines, and concurrent runs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fake_tensorrt
import tiny
from isorun.errors import BackendUnavailable, InvalidFeeds
from tensorrt_sessions import assert_close, expected, open_session

pytestmark = pytest.mark.usefixtures("installed")


def test_runs_a_model_and_reports_its_profiles(bert, tmp_path, trt):
    with open_session(bert, tmp_path) as session:
        for batch, length in [(1, 1), (4, 16), (2, 7), (1, 1)]:
            feeds = tiny.feeds(batch, length)
            assert_close(session.run(None, feeds), expected(bert, feeds))
        (pooled,) = session.run(["pooler_output"], feeds)
        assert pooled.shape == (1, tiny.WIDTH)
        provenance = session.provenance
        assert provenance.operators["TensorRT"]["Attention"] == 2
        assert provenance.details["profiles"] == ["batch=1..4..4 sequence=1..16..16"]
        assert provenance.versions["tensorrt"] == trt.__version__
    (built,) = fake_tensorrt.builds
    assert built.network.flags == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert built.config.cleared == [int(trt.BuilderFlag.TF32)]


def test_results_belong_to_the_caller(bert, tmp_path):
    with open_session(bert, tmp_path) as session:
        first = session.run(None, tiny.feeds(seed=1))
        kept = [array.copy() for array in first]
        session.run(None, tiny.feeds(seed=2))
        for array, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_rejects_a_shape_outside_every_profile(bert, tmp_path):
    with open_session(bert, tmp_path, shapes=["1x16", "1..4x8"]) as session:
        with pytest.raises(InvalidFeeds, match="batch=2 sequence=9"):
            session.run(None, tiny.feeds(2, 9))
        assert len(fake_tensorrt.builds) == 1


def test_on_miss_build_builds_in_the_background(bert, tmp_path):
    with open_session(bert, tmp_path, shapes=["1x8"], on_miss="build") as session:
        feeds = tiny.feeds(2, 9)
        with pytest.raises(BackendUnavailable, match="being built"):
            session.run(None, feeds)
        until = time.monotonic() + 30
        while True:
            try:
                found = session.run(None, feeds)
                break
            except BackendUnavailable:
                assert time.monotonic() < until
                time.sleep(0.05)
        assert_close(found, expected(bert, feeds))
        assert "sequence=1..32..32" in session.provenance.details["profiles"][1]
        assert len(fake_tensorrt.builds) == 2


def test_engines_and_timings_are_cached(bert, tmp_path):
    for _ in range(2):
        with open_session(bert, tmp_path) as session:
            session.run(None, tiny.feeds())
    assert len(fake_tensorrt.builds) == 1
    with open_session(bert, tmp_path, shapes=["1x8"]):
        pass
    assert len(fake_tensorrt.builds) == 2
    (timings,) = (tmp_path / "timings").iterdir()
    assert timings.read_bytes() == b"tt", "the second build starts from the timings of the first"


def test_models_with_other_weights_do_not_share_an_engine(bert, tmp_path):
    from isorun.models import checkpoint

    other = tmp_path / "other" / bert.name
    other.parent.mkdir()
    checkpoint.build(tiny.write_checkpoint(tmp_path / "weights", tiny.weights(seed=5)), other)
    feeds = tiny.feeds()
    for model in (bert, other):
        with open_session(model, tmp_path / "cache") as session:
            assert_close(session.run(None, feeds), expected(model, feeds))
    assert len(fake_tensorrt.builds) == 2


def test_rejects_a_folder_that_others_can_write_to(bert, tmp_path):
    folder = tmp_path / "engines"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(BackendUnavailable, match="writable by others"):
        open_session(bert, tmp_path)
    assert fake_tensorrt.builds == []


def test_a_damaged_engine_is_built_again(bert, tmp_path):
    with open_session(bert, tmp_path):
        pass
    (plan,) = tmp_path.glob("engines/*/engine.plan")
    plan.write_bytes(b"{")
    with open_session(bert, tmp_path) as session:
        session.run(None, tiny.feeds())
    assert len(fake_tensorrt.builds) == 2


def test_concurrent_runs_use_separate_contexts(bert, tmp_path):
    cases = [tiny.feeds(batch, length) for batch in (1, 3) for length in (4, 9)] * 5
    with open_session(bert, tmp_path) as session, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda feeds: session.run(None, feeds), cases))
        assert 1 <= len(fake_tensorrt.contexts) <= 4
        assert sum(context.runs for context in fake_tensorrt.contexts) == len(cases)
    for feeds, outputs in zip(cases, results, strict=True):
        assert_close(outputs, expected(bert, feeds))


def test_device_memory_does_not_grow_with_runs(bert, tmp_path, memory):
    with open_session(bert, tmp_path) as session:
        session.run(None, tiny.feeds(1, 1))
        before = memory.allocated
        for length in range(1, 17):
            session.run(None, tiny.feeds(4, length))
        assert memory.allocated == before
