"""TensorRT's backend on a fake of its API: what is built, what is found again, which profile a shape takes, how
many threads run at once. Nothing here says anything about TensorRT itself.

With ``ISORUN_TENSORRT=FOLDER`` NVIDIA's own Python bindings of that folder are between, over libraries that hand every
call to the same fake: test_tensorrt_bindings.py."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import fake_nvinfer
import fake_tensorrt
import isorun
import onnx_text
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
    if os.environ.get("ISORUN_TENSORRT_MEMORY") == "pycuda":
        return fake_tensorrt.watched(memory.PycudaMemory)(0)
    return fake_tensorrt.HostMemory()


@pytest.fixture(scope="session")
def trt(tmp_path_factory):
    """The fake, or NVIDIA's bindings over it."""
    folder = os.environ.get("ISORUN_TENSORRT")
    return fake_nvinfer.bindings(Path(folder), tmp_path_factory.mktemp("nvinfer")) if folder else fake_tensorrt


@pytest.fixture(autouse=True)
def here(monkeypatch, held, trt):
    """TensorRT and a GPU seem to be here."""
    fake_tensorrt.forget()
    fake_nvinfer.faults.clear()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setattr(tensorrt, "driver", lambda: Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), ""))
    monkeypatch.setattr(memory, "open_memory", lambda name, number: held)
    monkeypatch.setattr(tensorrt.TensorRT, "availability", lambda self: Availability(True))
    yield
    gc.collect()
    assert fake_nvinfer.faults == []


def opened(model, cache_dir, **options):
    options.setdefault("shapes", ["1..4x1..16"])
    return isorun.Session(model, backend="tensorrt", options=options, cache_dir=cache_dir, padding="keep")


def expected(bert, feeds):
    return isorun.Session(bert, backend="ort-cpu", threads=1, padding="keep").run(None, feeds)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


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


def on_device(array, off=0):
    """An array in what plays the device's memory, as far from an aligned address as is asked."""
    held = np.zeros(array.nbytes + 512, np.uint8)
    address = -(-held.ctypes.data // 256) * 256 + off
    fake_tensorrt.at(address, array.shape, array.dtype)[...] = array
    return DeviceArray(address, array.shape, array.dtype, owner=held)


def back(found):
    return fake_tensorrt.at(found.address, found.shape, found.dtype).copy()


def test_feeds_and_outputs_that_stay_on_the_device(bert, tmp_path, held):
    feeds = tiny.feeds()
    given = {name: on_device(array) for name, array in feeds.items()}
    with opened(bert, tmp_path) as session:
        found = session.run(None, given, device_outputs=True)
        assert_close(map(back, found), expected(bert, feeds))
        kept = back(found[1])
        session.run(None, tiny.feeds(seed=9), device_outputs=True)
        np.testing.assert_array_equal(back(found[1]), kept)
    assert held.copied == 0


def test_a_part_of_an_array_that_does_not_begin_where_tensorrt_wants_it_is_copied(bert, tmp_path, held):
    feeds = tiny.feeds()
    given = {name: on_device(array, off=8) for name, array in feeds.items()}
    place = on_device(np.zeros((2, tiny.WIDTH), np.float32), off=4)
    with opened(bert, tmp_path) as session:
        assert_close(session.run(None, given), expected(bert, feeds))
        assert held.copied == len(given)
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("pooler_output", "cuda", 0, np.float32, place.shape, place.address)
        session.run_with_iobinding(binding)
        assert_close([back(place)], expected(bert, feeds)[1:])


def test_a_binding_writes_where_it_was_told_and_reads_anew(bert, tmp_path):
    feeds = tiny.feeds()
    hidden, pooled = expected(bert, feeds)
    host, place = np.empty_like(hidden), on_device(np.zeros_like(pooled))
    with opened(bert, tmp_path) as session:
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_device_input(name, on_device(array))
        binding.bind_output("last_hidden_state", "cpu", 0, host.dtype, host.shape, host.ctypes.data)
        binding.bind_output("pooler_output", "cuda", 0, place.dtype, place.shape, place.address)
        session.run_with_iobinding(binding)
        assert_close([host, back(place)], [hidden, pooled])
        binding.clear_binding_outputs()
        binding.bind_output("pooler_output", "cuda")
        binding.bind_output("last_hidden_state")
        for seed in (4, 5):
            other = tiny.feeds(seed=seed)
            for name, array in other.items():
                binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
            found = [each.value() for each in binding.get_outputs()]
            assert isinstance(found[0], DeviceArray)
            assert_close([found[1], back(found[0])], expected(bert, other))


def test_memory_of_another_shape_is_refused(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        binding = session.io_binding()
        for name, array in tiny.feeds().items():
            binding.bind_cpu_input(name, array)
        place = on_device(np.zeros((3, tiny.WIDTH), np.float32))
        binding.bind_output("pooler_output", "cuda", 0, place.dtype, place.shape, place.address)
        with pytest.raises(
            InvalidFeeds, match=r"'pooler_output' is \(2, 32\) of float32; it was bound to memory of \(3"
        ):
            session.run_with_iobinding(binding)


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
        assert [context.recorded for context in fake_tensorrt.contexts] == [True, True, False]
        assert [context.runs for context in fake_tensorrt.contexts] == [3, 3, 3]
    assert len(graphs) == 2


def test_feeds_on_the_device_do_not_touch_what_is_recorded(bert, tmp_path, graphs):
    feeds = tiny.feeds()
    given = {name: on_device(array) for name, array in feeds.items()}
    with opened(bert, tmp_path, cuda_graphs=4) as session:
        for _ in range(2):
            assert_close(session.run(None, feeds), expected(bert, feeds))
            found = session.run(None, given, device_outputs=True)
            assert_close(map(back, found), expected(bert, feeds))
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
        (context,) = fake_tensorrt.contexts
        assert context.runs == 1 + 3, "one to begin with"


def test_an_operator_that_the_parser_lacks_is_named(bert, tmp_path):
    from isorun import model as models

    cache = Cache(tmp_path)
    lowered = models.lower(models.open_model(bert, cache), ("com.microsoft",), cache)
    backend = registry.get("tensorrt")
    with pytest.raises(UnsupportedModel, match=r"; Attention node_\d+: no importer; ") as caught:
        backend.compile(lowered, CompileConfig(threads=None, cache_dir=str(tmp_path)))
    assert caught.value.operators == ("EmbedLayerNormalization", "Attention", "BiasGelu")


def test_a_build_that_fails_has_tensorrts_own_words(bert, tmp_path):
    with pytest.raises(BackendFailed, match=r"cannot build an engine of .*: the level is above 5"):
        opened(bert, tmp_path, optimization_level=6)


def test_a_gpu_that_tensorrt_does_not_start_on_is_said(bert, tmp_path):
    fake_tensorrt.broken["start"] = "CUDA initialization failure with error: 35"
    with pytest.raises(BackendUnavailable, match=r"TensorRT does not start: CUDA .* error: 35\. Look whether"):
        opened(bert, tmp_path)


def test_a_run_that_fails_has_tensorrts_own_words(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        fake_tensorrt.broken["run"] = "out of tune"
        with pytest.raises(BackendFailed, match="tensorrt cannot run: out of tune") as caught:
            session.run(None, tiny.feeds())
        assert str(caught.value.__cause__) == "out of tune"
        fake_tensorrt.broken.clear()
        assert_close(session.run(None, tiny.feeds()), expected(bert, tiny.feeds()))


def test_an_engine_that_tensorrt_does_not_take_is_named(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt.builder, "build", lambda *_: b"another's")
    with pytest.raises(BackendFailed, match=r"cannot load the engine in .*engines.*: the engine is damaged\. Delete"):
        opened(bert, tmp_path)


def test_an_engine_that_reads_other_types_is_refused(bert, tmp_path):
    fake_tensorrt.broken["type"] = "int32"
    with pytest.raises(BackendFailed, match=r"tensorrt made 'input_ids' int32; in the model it is int64"):
        opened(bert, tmp_path)


def test_timings_that_tensorrt_does_not_take_are_measured_anew(bert, tmp_path):
    with opened(bert, tmp_path):
        pass
    (timings,) = (tmp_path / "timings").iterdir()
    timings.write_bytes(b"damaged")
    with opened(bert, tmp_path, shapes=["1x8"]):
        pass
    assert timings.read_bytes() == b"t"


def test_a_description_that_is_no_json_refuses_no_engine(bert, tmp_path):
    with opened(bert, tmp_path) as session:
        fake_tensorrt.broken["description"] = '{"Layers": [inf]}'
        provenance = session.provenance
    assert provenance.operators == {"TensorRT": {}}
    assert "is no JSON: Expecting value" in provenance.details["layers"]


def test_an_input_that_nothing_reads_need_not_be_in_the_engine(tmp_path):
    model = onnx_text.graph(
        """g (int64[batch, sequence] ids, int64[batch, sequence] unread) => (float[batch, sequence] y)
        { y = Cast<to = 1>(ids) }"""
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ids = np.arange(6).reshape(2, 3)
    with opened(path, tmp_path) as session:
        (found,) = session.run(None, {"ids": ids, "unread": ids})
    np.testing.assert_array_equal(found, ids)


def test_an_engine_that_cannot_be_built_aside_is_told_at_the_next_run(bert, tmp_path):
    with opened(bert, tmp_path, shapes=["1x8"], on_miss="build") as session:
        fake_tensorrt.broken["start"] = "no memory"
        with pytest.raises(BackendUnavailable, match=r"sequence=9 is being built\."):
            session.run(None, tiny.feeds(2, 9))
        session._executable._building.join()
        with pytest.raises(BackendUnavailable, match=r"an earlier one could not be: .*no memory"):
            session.run(None, tiny.feeds(2, 9))


def test_an_executable_that_was_closed_says_so_and_builds_nothing(bert, tmp_path):
    with opened(bert, tmp_path, on_miss="build") as session:
        executable = session._executable
    with pytest.raises(BackendFailed, match="was closed"):
        executable.run(None, tiny.feeds(1, 30))
    assert len(fake_tensorrt.builds) == 1


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
