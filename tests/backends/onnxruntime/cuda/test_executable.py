"""Running models on a GPU, with the CPU instead: ONNX Runtime's calls are the same, and host memory replaces the
device's."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

import tiny
from cuda_forms import cpu_session, lower, whole_session
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray, adopt
from isorun.types import RuntimeReport
from isorun_backends.nvidia.pinned import Pinned
from isorun_backends.onnxruntime.cuda import attention
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device


@pytest.fixture(scope="module")
def lowered(bert):
    return lower(bert)


@pytest.fixture
def executable(lowered):
    return opened(lowered)


def opened(lowered, wanted="auto", graphs=0, **more):
    forms = attention.forms(lowered.path)

    def open_form(form, stream=None):
        return cpu_session(forms.models[form], lowered)

    def describe(sessions, details):
        return RuntimeReport("host", "fp32", {}, {}, {"forms": list(sessions), **details})

    masks = Masks(forms.mask, wanted)
    return CudaExecutable("ort-cuda", open_form, lowered.info, Device("cpu", 0), masks, describe, graphs, **more)


@pytest.fixture
def driver_memory(monkeypatch):
    """Ordinary memory instead of pinned memory: the allocations, in order."""
    held = []

    def host_memory(nbytes, device):
        held.append(np.empty(nbytes, np.uint8))
        return held[-1].ctypes.data

    def copy_to_host(array, address, device):
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy_to_device(copies, stream, device):
        assert stream == 7
        for address, array in copies:
            ctypes.memmove(address, array.ctypes.data, array.nbytes)

    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.copy_to_device", copy_to_device)
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.host_memory", host_memory)
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.copy_to_host", copy_to_host)
    return held


def expected(lowered, feeds):
    return whole_session(lowered).run(None, feeds)


def on_device(feeds):
    """The same memory, declared to be a device's."""
    return {
        name: DeviceArray(array.ctypes.data, array.shape, array.dtype, owner=array) for name, array in feeds.items()
    }


def array_of(value: DeviceArray) -> np.ndarray:
    memory = (ctypes.c_char * value.nbytes).from_address(value.address)
    return np.frombuffer(memory, value.dtype).reshape(value.shape)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_forms_are_opened_at_their_first_use(executable, lowered):
    assert executable.report().details["forms"] == ["lengths"]
    feeds = tiny.feeds(batch=2, length=8)
    feeds["attention_mask"][:] = 1
    assert_close(executable.run(None, feeds), expected(lowered, feeds))
    assert executable.report().details["forms"] == ["lengths"]
    feeds["attention_mask"][0, 0] = 0
    assert_close(executable.run(None, feeds), expected(lowered, feeds))
    assert executable.report().details["forms"] == ["lengths", "bias"]
    feeds["attention_mask"][0] = 0
    assert_close(executable.run(["pooler_output"], feeds), expected(lowered, feeds)[1:])
    assert executable.report().details["forms"] == ["lengths", "bias", "plain"]


def test_a_requested_form_is_used_or_rejected(lowered):
    executable = opened(lowered, "lengths")
    feeds = tiny.feeds(batch=1, length=8)
    feeds["attention_mask"][:] = [[0, 1, 1, 1, 1, 1, 1, 1]]
    with pytest.raises(InvalidFeeds, match=r"'lengths'.*'attention_mask'"):
        executable.run(None, feeds)
    feeds["attention_mask"][:] = [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert_close(executable.run(None, feeds), expected(lowered, feeds))


@pytest.mark.parametrize("graphs", [0, 1])
def test_results_belong_to_the_caller(lowered, graphs):
    executable = opened(lowered, graphs=graphs)
    (host,) = executable.run(["pooler_output"], tiny.feeds(seed=1))
    (device,) = executable.run_on_device(["pooler_output"], tiny.feeds(seed=1))
    kept = host.copy(), array_of(device).copy()
    executable.run(["pooler_output"], tiny.feeds(seed=2))
    executable.run_on_device(["pooler_output"], tiny.feeds(seed=2))
    np.testing.assert_array_equal((host, array_of(device)), kept)


def test_feeds_and_outputs_on_the_device(executable, lowered):
    feeds = tiny.feeds()
    found = executable.run_on_device(None, on_device(feeds))
    assert all(isinstance(value, DeviceArray) for value in found)
    assert executable.report().details["forms"][-1] == "plain", "a mask on the device is not inspected"
    assert_close([array_of(value) for value in found], expected(lowered, feeds))
    again = executable.run_on_device(["pooler_output"], feeds)
    assert_close([array_of(value) for value in again], expected(lowered, feeds)[1:])
    taken = adopt({"x": again[0]})["x"]
    assert taken.dtype == np.float32


def test_a_binding_writes_to_the_given_memory_and_rereads_feeds(executable, lowered):
    feeds = tiny.feeds(seed=1)
    given, device = np.empty((2, tiny.WIDTH), np.float32), np.empty((2, 5, tiny.WIDTH), np.float32)
    memory = DeviceArray(device.ctypes.data, device.shape, device.dtype, owner=device)
    feeds = tiny.feeds(batch=2, length=5, seed=1)
    binding = executable.bind(feeds, {"pooler_output": given, "last_hidden_state": memory})
    for seed in (1, 2):
        for name, array in tiny.feeds(batch=2, length=5, seed=seed).items():
            feeds[name][...] = array
        results = binding.run()
        assert results[0] is given
        assert results[1] is memory
        hidden, pooled = expected(lowered, feeds)
        np.testing.assert_allclose(given, pooled, atol=1e-5)
        np.testing.assert_allclose(device, hidden, atol=1e-5)


def test_rejects_a_feed_on_another_gpu(executable):
    feeds = tiny.feeds()
    array = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, device_id=1)
    with pytest.raises(InvalidFeeds, match=r"'input_ids'.*GPU 1.*GPU 0"):
        executable.bind(feeds, {"pooler_output": None}).run()


def test_waits_for_the_streams_of_feeds(executable, monkeypatch):
    waited = []
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.synchronize", lambda *which: waited.append(which))
    feeds = tiny.feeds()
    given = {
        name: DeviceArray(array.ctypes.data, array.shape, array.dtype, stream=stream)
        for stream, (name, array) in enumerate(feeds.items(), start=7)
    }
    executable.bind(given, {"pooler_output": ON_DEVICE}).run()
    assert waited == [(7, 0), (8, 0), (9, 0)]


def test_graphs_keep_buffers_by_shape_up_to_the_limit(lowered):
    executable = opened(lowered, graphs=2)
    for seed in (1, 2):
        for length in (8, 16, 24):
            feeds = tiny.feeds(batch=2, length=length, seed=seed)
            feeds["attention_mask"][:] = 1
            assert_close(executable.run(None, feeds), expected(lowered, feeds))
            assert_close(executable.run(["pooler_output"], feeds), expected(lowered, feeds)[1:])
    described = executable.report().details["cuda_graphs"]
    assert described["limit"] == 2
    assert described["shapes"] == ["lengths 2x8 2x8 2x8", "lengths 2x16 2x16 2x16"]


def test_concurrent_runs_with_graphs(lowered):
    executable = opened(lowered, graphs=1)
    cases = [tiny.feeds(batch=batch, length=length, seed=3) for batch in (1, 2) for length in (8, 9)] * 5
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda feeds: executable.run(None, feeds), cases))
    for feeds, outputs in zip(cases, results, strict=True):
        assert_close(outputs, expected(lowered, feeds))


def test_recorded_runs_come_from_one_thread(lowered, monkeypatch):
    """ONNX Runtime keeps graphs by thread, and records a run without a number as number 0."""
    executable, seen = opened(lowered, graphs=1), []
    real = onnxruntime.InferenceSession.run_with_iobinding

    def noted(self, binding, run_options=None):
        seen.append((threading.get_ident(), run_options.get_run_config_entry("gpu_graph_id")))
        real(self, binding, run_options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", noted)
    feeds = tiny.feeds(batch=1, length=8)
    works = [lambda: executable.run(None, feeds), lambda: executable.run_on_device(None, on_device(feeds))]
    for work in (*works, *works):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [number for _, number in seen] == ["1", "-1", "1", "-1"]
    assert len({thread for thread, _ in seen}) == 1
    executable.close()
    with pytest.raises(BackendFailed, match="after shutdown"):
        executable.run(None, feeds)


@pytest.fixture
def events(monkeypatch):
    """A fake of the driver's events and streams: what ran between two events, and which streams exist."""
    seen = SimpleNamespace(ran=[], streams=[])
    real = onnxruntime.InferenceSession.run_with_iobinding

    def times(stream, device, work, runs):
        seen.ran.clear()
        for _ in range(runs):
            work()
        return np.full(runs, float(stream))

    def stream(device):
        seen.streams.append(SimpleNamespace(handle=40 + len(seen.streams)))
        return seen.streams[-1]

    def noted(self, binding, options=None):
        waits = options.get_run_config_entry if options else None
        try:
            seen.ran.append((waits("gpu_graph_id"), waits("disable_synchronize_execution_providers")))
        except RuntimeError:  # it has no such entry
            seen.ran.append((waits("gpu_graph_id"), "0"))
        real(self, binding, options)

    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.times", times)
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.Stream", stream)
    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", noted)
    return seen


def test_device_times_are_those_of_the_graph(lowered, events):
    feeds, longer = tiny.feeds(batch=1, length=8), tiny.feeds(batch=1, length=9)
    executable = opened(lowered, graphs=1, stream=SimpleNamespace(handle=7))
    assert executable.device_times(feeds, 3).tolist() == [7.0] * 3
    assert events.ran == [("1", "1")] * 3, "ONNX Runtime does not wait between the events"
    assert executable.device_times(longer, 3).tolist() == [7.0] * 3
    assert events.ran == [("-1", "1")] * 3, "the limit is one shape"
    assert not events.streams


def test_device_times_without_graphs_use_a_new_session(lowered, events):
    executable = opened(lowered)
    feeds = tiny.feeds(batch=1, length=8)
    feeds["attention_mask"][:] = 1
    assert executable.device_times(feeds, 2).tolist() == [40.0] * 2
    assert executable.device_times(feeds, 2).tolist() == [41.0] * 2
    assert events.ran == [("-1", "1")] * 2
    assert executable.report().details["forms"] == ["lengths"], "the session in use is another"


@pytest.mark.parametrize("graphs", [0, 2])
def test_outputs_reuse_pinned_memory(lowered, driver_memory, graphs):
    executable = opened(lowered, graphs=graphs, pinned=Pinned(0))
    feeds = tiny.feeds(batch=2, length=5)
    kept = executable.run(None, feeds)
    assert_close(kept, expected(lowered, feeds))
    other = tiny.feeds(batch=2, length=5, seed=9)
    for _ in range(3):
        assert_close(executable.run(None, other), expected(lowered, other))
    assert_close(kept, expected(lowered, feeds))
    assert len(driver_memory) == 4, "two outputs that were kept, and two that were released"


def test_feeds_of_graphs_use_pinned_memory(lowered, driver_memory):
    executable = opened(lowered, graphs=2, pinned=Pinned(0), stream=SimpleNamespace(handle=7))
    for seed in (1, 2):
        for length in (5, 9):
            feeds = tiny.feeds(batch=2, length=length, seed=seed)
            backwards = {name: array[:, ::-1].copy()[:, ::-1] for name, array in feeds.items()}  # not contiguous
            assert_close(executable.run(None, backwards), expected(lowered, feeds))
    assert len(driver_memory) == 2 * 3 + 2, "three inputs per shape, and two outputs that were released"


def test_pinned_memory_is_reused_by_size(driver_memory):
    pinned = Pinned(0)
    first = pinned.array((2, 600), np.dtype(np.float32))
    part, address = first[1:], first.ctypes.data
    del first
    assert pinned.array((1200,), np.dtype(np.float32)).ctypes.data != address, "a slice of it is still referenced"
    del part
    assert pinned.array((5, 300), np.dtype(np.float32)).ctypes.data == address, "half the size and more"
    assert pinned.array((0, 3), np.dtype(np.float32)).shape == (0, 3)
    assert [each.nbytes for each in driver_memory] == [8192, 8192, 4096]
