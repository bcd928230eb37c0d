"""What is built for a model, what is found again, which profile a shape takes, and how many threads run at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import fake_tensorrt
import tiny
from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.system.cache import Cache
from isorun_backends.tensorrt import engines
from tensorrt_sessions import assert_close, expected, opened


def test_a_model_runs_and_says_what_it_was_built_for(bert, tmp_path, trt):
    with opened(bert, tmp_path) as session:
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
    with opened(bert, tmp_path) as session:
        first = session.run(None, tiny.feeds(seed=1))
        kept = [array.copy() for array in first]
        session.run(None, tiny.feeds(seed=2))
        for array, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_a_shape_outside_every_profile_is_refused_and_nothing_is_built(bert, tmp_path):
    with opened(bert, tmp_path, shapes=["1x16", "1..4x8"]) as session:
        with pytest.raises(InvalidFeeds, match=r"No engine was built for batch=2 sequence=9\. The profiles: batch=1 "):
            session.run(None, tiny.feeds(2, 9))
        assert len(fake_tensorrt.builds) == 1


def test_a_shape_outside_is_built_aside_where_asked(bert, tmp_path):
    with opened(bert, tmp_path, shapes=["1x8"], on_miss="build") as session:
        feeds = tiny.feeds(2, 9)
        with pytest.raises(BackendUnavailable, match=r"an engine for batch=2 sequence=9 is being built"):
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


def test_an_engine_is_found_again_and_timings_are_kept(bert, tmp_path):
    for _ in range(2):
        with opened(bert, tmp_path) as session:
            session.run(None, tiny.feeds())
    assert len(fake_tensorrt.builds) == 1
    with opened(bert, tmp_path, shapes=["1x8"]):
        pass
    assert len(fake_tensorrt.builds) == 2
    (timings,) = (tmp_path / "timings").iterdir()
    assert timings.read_bytes() == b"tt", "the second build starts from what the first one measured"


def test_models_of_one_name_and_other_weights_share_no_engine(bert, tmp_path):
    from isorun.models import checkpoint

    other = tmp_path / "other" / bert.name
    other.parent.mkdir()
    checkpoint.build(tiny.write_checkpoint(tmp_path / "weights", seed=5), other)
    feeds = tiny.feeds()
    for model in (bert, other):
        with opened(model, tmp_path / "cache") as session:
            assert_close(session.run(None, feeds), expected(model, feeds))
    assert len(fake_tensorrt.builds) == 2


def test_every_part_of_the_key_counts(bert, tmp_path):
    from dataclasses import replace

    from isorun.models import lowering
    from isorun.models import source as models
    from isorun_backends.tensorrt.profiles import Profile

    cache = Cache(tmp_path)
    model = lowering.lower(models.open_model(bert, cache), ("onnx",), cache)
    place = engines.Place("10.16", "A GPU", "9.0", "13.0")
    wide, narrow = Profile({"batch": (1, 1, 4)}), Profile({"batch": (1, 1, 1)})
    keys = [
        engines.key(model, "fp32", [wide], place, workspace=0),
        engines.key(model, "fp16", [wide], place, workspace=0),
        engines.key(model, "fp32", [narrow], place, workspace=0),
        engines.key(model, "fp32", [wide, narrow], place, workspace=0),
        engines.key(model, "fp32", [wide], place, workspace=1),
        engines.key(replace(model, fingerprint="0"), "fp32", [wide], place, workspace=0),
        engines.key(replace(model, dialect="primitive"), "fp32", [wide], place, workspace=0),
        *(
            engines.key(model, "fp32", [wide], replace(place, **{part: "other"}), workspace=0)
            for part in ("runtime", "gpu", "compute", "driver")
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == engines.key(model, "fp32", [wide], place, workspace=0)


def test_a_folder_that_others_may_write_to_is_refused(bert, tmp_path):
    folder = tmp_path / "engines"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(BackendUnavailable, match=r"engines may be written to by others, and an engine is code"):
        opened(bert, tmp_path)
    assert fake_tensorrt.builds == []


def test_a_damaged_engine_is_built_anew(bert, tmp_path):
    with opened(bert, tmp_path):
        pass
    (plan,) = tmp_path.glob("engines/*/engine.plan")
    plan.write_bytes(b"{")
    with opened(bert, tmp_path) as session:
        session.run(None, tiny.feeds())
    assert len(fake_tensorrt.builds) == 2


def test_many_threads_have_a_context_each(bert, tmp_path):
    cases = [tiny.feeds(batch, length) for batch in (1, 3) for length in (4, 9)]
    wanted = [expected(bert, feeds) for feeds in cases]
    right = []
    with opened(bert, tmp_path) as session:

        def work():
            for _ in range(5):
                for feeds, answer in zip(cases, wanted, strict=True):
                    found = session.run(None, feeds)
                    right.append(all(np.allclose(a, b, atol=1e-5) for a, b in zip(found, answer, strict=True)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(fake_tensorrt.contexts) <= 4
        assert sum(context.runs for context in fake_tensorrt.contexts) == 4 * 5 * 4
    assert right == [True] * 80


def test_device_memory_does_not_grow_with_runs(bert, tmp_path, held):
    with opened(bert, tmp_path) as session:
        session.run(None, tiny.feeds(1, 1))
        before = held.allocated
        for length in range(1, 17):
            session.run(None, tiny.feeds(4, length))
        assert held.allocated == before
