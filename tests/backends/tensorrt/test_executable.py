"""Building, caching and choosing engines, and concurrent runs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

import fake_tensorrt
import onnx_text
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, CacheError, InvalidFeeds
from tensorrt_sessions import assert_close, expected, open_session

pytestmark = pytest.mark.usefixtures("installed")


def test_runs_a_model_and_reports_its_profiles(bert, tmp_path):
    with open_session(bert, tmp_path) as session:
        for batch, length in [(1, 1), (4, 16), (2, 7), (1, 1)]:
            feeds = tiny.feeds(batch, length)
            assert_close(session.run(None, feeds), expected(bert, feeds))
        (pooled,) = session.run(["pooler_output"], feeds)
        assert pooled.shape == (1, tiny.WIDTH)
        provenance = session.provenance
        assert provenance.operators["TensorRT"]["Attention"] == 2
        assert provenance.details["profiles"] == ["batch=1..4..4 sequence=1..16..16"]
        assert provenance.versions["tensorrt"] == fake_tensorrt.__version__
    (built,) = fake_tensorrt.builds
    assert built.network.flags == 1 << int(fake_tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert built.config.cleared == [fake_tensorrt.BuilderFlag.TF32]


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
                outputs = session.run(None, feeds)
                break
            except BackendUnavailable:
                assert time.monotonic() < until
                time.sleep(0.05)
        assert_close(outputs, expected(bert, feeds))
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

    reweighted = tmp_path / "other" / bert.name
    reweighted.parent.mkdir()
    checkpoint.build(tiny.write_checkpoint(tmp_path / "weights", tiny.weights(seed=5)), reweighted)
    feeds = tiny.feeds()
    for model in (bert, reweighted):
        with open_session(model, tmp_path / "cache") as session:
            assert_close(session.run(None, feeds), expected(model, feeds))
    assert len(fake_tensorrt.builds) == 2


def test_rejects_a_folder_that_others_can_write_to(bert, tmp_path):
    folder = tmp_path / "engines"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CacheError, match="writable by other users"):
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
        assert 1 <= len(fake_tensorrt.contexts) <= 2
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


def test_the_number_of_contexts_is_bounded(bert, tmp_path):
    """Further runs wait for one, and raise if the session is closed meanwhile."""
    fake_tensorrt.pauses["run"] = threading.Event()
    with open_session(bert, tmp_path, contexts=1) as session, ThreadPoolExecutor(3) as pool:
        executable = session._model._main.executable
        runs = [pool.submit(executable.run, None, tiny.feeds()) for _ in range(3)]
        while not fake_tensorrt.contexts:
            time.sleep(0.01)
        session.close()
        fake_tensorrt.pauses["run"].set()
        outcomes = [run.exception() for run in runs]
    assert len(fake_tensorrt.contexts) == 1
    assert [type(outcome) for outcome in outcomes if outcome] == [BackendFailed] * 2
    assert_close(next(run for run in runs if not run.exception()).result(), expected(bert, tiny.feeds()))


def test_closing_does_not_wait_for_an_engine_that_is_being_built(bert, tmp_path):
    session = open_session(bert, tmp_path, shapes=["1x8"], on_miss="build")
    executable = session._model._main.executable
    fake_tensorrt.pauses["build"] = threading.Event()
    with pytest.raises(BackendUnavailable, match="being built"):
        session.run(None, tiny.feeds(2, 9))
    start = time.monotonic()
    session.close()
    assert time.monotonic() - start < 5
    fake_tensorrt.pauses["build"].set()
    executable._building.join()
    assert executable._engines == []
    with pytest.raises(BackendFailed, match="was closed"):
        executable.run(None, tiny.feeds(2, 9))


@pytest.fixture
def overridable(tmp_path):
    """A model that adds an input with a default of 3."""
    model = onnx_text.graph(
        "g (float[batch] x, float[1] bias) => (float[batch] y) <float[1] bias = {3}> { y = Add(x, bias) }"
    )
    onnx.save(model, tmp_path / "overridable.onnx")
    return tmp_path / "overridable.onnx"


def test_rejects_a_feed_for_an_input_whose_default_is_in_the_engine(overridable, tmp_path):
    x = np.arange(2, dtype=np.float32)
    with open_session(overridable, tmp_path, shapes=["1..4"]) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 3)
        with pytest.raises(InvalidFeeds, match="cannot override input 'bias'"):
            session.run(None, {"x": x, "bias": x[:1]})


def test_warms_up_within_the_declared_shapes(bert, tmp_path):
    with open_session(bert, tmp_path, shapes=["1x16"]) as session:
        session.warmup()
    with (
        open_session(bert, tmp_path, shapes=["3x7"]) as session,
        pytest.raises(InvalidFeeds, match="batch=3 sequence=7"),
    ):
        session.warmup()


def test_reports_the_precision_of_the_graph(tmp_path):
    """Not the requested one: a model's own types are kept."""
    weight = "<float16[2, 2] w = {1, 2, 3, 4}>"
    model = onnx_text.graph(f"g (float16[batch, 2] x) => (float16[batch, 2] y) {weight} {{ y = MatMul(x, w) }}")
    onnx.save(model, tmp_path / "half.onnx")
    with open_session(tmp_path / "half.onnx", tmp_path, shapes=["1..4"]) as session:
        assert session.provenance.precision == "fp16"
