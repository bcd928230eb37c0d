"""TensorRT's backend on a fake of its API: what is built, what is found again, which profile a shape takes, how
many threads run at once. Nothing here says anything about TensorRT itself."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

import fake_tensorrt
import isorun
import tiny
from isorun import registry
from isorun.cache import Cache
from isorun.device_arrays import DeviceArray
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.types import Availability, CompileConfig
from isorun_backends import tensorrt
from isorun_backends.cuda_driver import Driver, Gpu
from isorun_backends.tensorrt import engines, memory


@pytest.fixture
def held():
    return fake_tensorrt.HostMemory()


@pytest.fixture(autouse=True)
def here(monkeypatch, held):
    """TensorRT and a GPU seem to be here."""
    fake_tensorrt.builds.clear()
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setattr(tensorrt, "driver", lambda: Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), ""))
    monkeypatch.setattr(memory, "open_memory", lambda name, number: held)
    monkeypatch.setattr(tensorrt.TensorRT, "availability", lambda self: Availability(True))


def opened(model, cache_dir, **options):
    options.setdefault("shapes", ["1..4x1..16"])
    return isorun.Session(model, backend="tensorrt", options=options, cache_dir=cache_dir, padding="keep")


def expected(bert, feeds):
    return isorun.Session(bert, backend="ort-cpu", threads=1, padding="keep").run(None, feeds)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_model_runs_and_says_what_it_was_built_for(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        for batch, length in [(1, 1), (4, 16), (2, 7), (1, 1)]:
            feeds = tiny.feeds(batch, length)
            assert_close(session.run(None, feeds), expected(bert, feeds))
        (pooled,) = session.run(["pooler_output"], feeds)
        assert pooled.shape == (1, tiny.WIDTH)
        provenance = session.provenance
        assert provenance.operators == {"TensorRT": {"gemm": 2, "mha": 1}}
        assert provenance.details["profiles"] == ["batch=1..4..4 sequence=1..16..16"]
        assert provenance.versions["tensorrt"] == "10.16.1"
    (built,) = fake_tensorrt.builds
    assert built.network.flags == 1 << fake_tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    assert built.config.cleared == [fake_tensorrt.BuilderFlag.TF32]


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
    from isorun import checkpoint

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

    from isorun import model as models
    from isorun_backends.tensorrt.profiles import Profile

    cache = Cache(tmp_path)
    model = models.lower(models.open_model(bert, cache), ("onnx",), cache)
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
        contexts = session._executable._engines[0].engine.contexts
        assert 1 <= len(contexts) <= 4
        assert sum(context.runs for context in contexts) == 4 * 5 * 4
    assert right == [True] * 80


def test_device_memory_does_not_grow_with_runs(bert, tmp_path, held):
    with opened(bert, tmp_path) as session:
        session.run(None, tiny.feeds(1, 1))
        before = held.allocated
        for length in range(1, 17):
            session.run(None, tiny.feeds(4, length))
        assert held.allocated == before


def test_feeds_and_outputs_that_stay_on_the_device(bert, tmp_path):
    feeds = tiny.feeds()
    given = {name: DeviceArray(array.ctypes.data, array.shape, array.dtype) for name, array in feeds.items()}
    with opened(bert, tmp_path) as session:
        found = session.run(None, given, device_outputs=True)
        assert_close([fake_tensorrt.at(each.address, each.shape, each.dtype) for each in found], expected(bert, feeds))
        kept = fake_tensorrt.at(found[1].address, found[1].shape, found[1].dtype).copy()
        session.run(None, tiny.feeds(seed=9), device_outputs=True)
        np.testing.assert_array_equal(fake_tensorrt.at(found[1].address, found[1].shape, found[1].dtype), kept)


@pytest.fixture
def graphs(monkeypatch):
    """CUDA graphs, played: how many were recorded."""
    recorded = []

    def capture(name, stream, work):
        recorded.append(fake_tensorrt.capture(name, stream, work))
        return recorded[-1]

    monkeypatch.setattr(memory, "capture", capture)
    return recorded


def test_a_graph_is_recorded_after_a_shapes_first_run_in_a_context_of_its_own(bert, tmp_path, graphs):
    with opened(bert, tmp_path, cuda_graphs=2) as session:
        for seed in range(3):
            for length in (4, 5, 6):  # the last is one too many: it runs without
                feeds = tiny.feeds(2, length, seed=seed)
                assert_close(session.run(None, feeds), expected(bert, feeds))
        contexts = session._executable._engines[0].engine.contexts
        assert [context.recorded for context in contexts] == [True, True, False]
        assert [context.runs for context in contexts] == [3, 3, 3]
    assert len(graphs) == 2


def test_feeds_on_the_device_do_not_touch_what_is_recorded(bert, tmp_path, graphs):
    feeds = tiny.feeds()
    given = {name: DeviceArray(array.ctypes.data, array.shape, array.dtype) for name, array in feeds.items()}
    with opened(bert, tmp_path, cuda_graphs=4) as session:
        for _ in range(2):
            assert_close(session.run(None, feeds), expected(bert, feeds))
            found = session.run(None, given, device_outputs=True)
            arrays = [fake_tensorrt.at(each.address, each.shape, each.dtype) for each in found]
            assert_close(arrays, expected(bert, feeds))
    assert len(graphs) == 1


def test_a_feed_on_another_gpu_is_refused(bert, tmp_path):
    feeds = tiny.feeds()
    array = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, device_id=1)
    refused = pytest.raises(InvalidFeeds, match="'input_ids' is on GPU 1; this session is on GPU 0")
    with opened(bert, tmp_path) as session, refused:
        session.run(None, feeds)


@pytest.mark.parametrize("most", [0, 1])
def test_the_devices_own_time_is_that_of_the_engine_alone(bert, tmp_path, monkeypatch, graphs, most):

    def times(stream, device, work, runs):
        for _ in range(runs):
            work()
        return np.full(runs, 0.25)

    monkeypatch.setattr("isorun_backends.cuda_driver.times", times)
    with opened(bert, tmp_path, cuda_graphs=most) as session:
        assert session.device_times(tiny.feeds(2, 7), runs=3).tolist() == [0.25] * 3
        (context,) = session._executable._engines[0].engine.contexts
        assert context.runs == 1 + 3, "one to begin with"


def test_an_operator_that_the_parser_lacks_is_named(bert, tmp_path):
    from isorun import model as models

    cache = Cache(tmp_path)
    lowered = models.lower(models.open_model(bert, cache), ("com.microsoft",), cache)
    backend = registry.get("tensorrt")
    with pytest.raises(UnsupportedModel, match="Attention attention: no importer") as caught:
        backend.compile(lowered, CompileConfig(threads=None, cache_dir=str(tmp_path)))
    assert caught.value.operators == ("Attention",)


def test_a_build_that_fails_has_tensorrts_own_words(bert, tmp_path):
    with pytest.raises(BackendFailed, match=r"cannot build an engine of .*: the level is above 5"):
        opened(bert, tmp_path, optimization_level=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_miss": "bild"}, "no on_miss 'bild'; did you mean 'build'"),
        ({"workspace": -1}, "workspace is -1"),
        ({"cuda_graphs": True}, "cuda_graphs is True"),
        ({"device_id": 3}, "there is no GPU 3.*sees 1"),
        ({"shapes": ["1x2x3"]}, "'1x2x3' is none of batchxsequence"),
    ],
)
def test_options_that_mean_nothing_are_refused(bert, tmp_path, options, message):
    with pytest.raises(BackendUnavailable, match=message):
        opened(bert, tmp_path, **options)
