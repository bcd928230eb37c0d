"""Running models on a GPU, with the CPU instead: ONNX Runtime's calls are the same, and host memory replaces the
device's."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import tiny
from cuda_forms import cpu_session, lower, whole_session
from fake_device_memory import HostMemory
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray, adopt
from isorun.types import RuntimeReport
from isorun_backends.onnxruntime.cuda import attention
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device


@pytest.fixture(scope="module")
def lowered(bert):
    return lower(bert)


@pytest.fixture
def executable(lowered):
    return opened(lowered)


def opened(lowered, wanted="auto", graphs=0, memory=None):
    forms, memory = attention.forms(lowered.path), memory or HostMemory()

    def open_form(form, stream=None):
        return cpu_session(forms.models[form], lowered)

    def describe(sessions, details):
        return RuntimeReport("host", "fp32", {}, {}, {"forms": list(sessions), **details})

    return CudaExecutable(
        "ort-cuda",
        open_form,
        lowered.info,
        Device("cpu", 0),
        Masks(forms.mask, wanted),
        describe,
        lambda: memory,
        graphs,
        7 if graphs else None,
    )


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


def assert_close(outputs, wanted):
    for output, reference in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, reference, atol=1e-5)


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
    outputs = executable.run_on_device(None, on_device(feeds))
    assert all(isinstance(value, DeviceArray) for value in outputs)
    assert executable.report().details["forms"][-1] == "plain", "a mask on the device is not inspected"
    assert_close([array_of(value) for value in outputs], expected(lowered, feeds))
    again = executable.run_on_device(["pooler_output"], feeds)
    assert_close([array_of(value) for value in again], expected(lowered, feeds)[1:])
    taken = adopt({"x": again[0]})["x"]
    assert taken.dtype == np.float32


def test_a_binding_writes_to_the_given_memory_and_rereads_feeds(executable, lowered):
    feeds = tiny.feeds(seed=1)
    host, device = np.empty((2, tiny.WIDTH), np.float32), np.empty((2, 5, tiny.WIDTH), np.float32)
    memory = DeviceArray(device.ctypes.data, device.shape, device.dtype, owner=device)
    feeds = tiny.feeds(batch=2, length=5, seed=1)
    binding = executable.bind(feeds, {"pooler_output": host, "last_hidden_state": memory})
    for seed in (1, 2):
        for name, array in tiny.feeds(batch=2, length=5, seed=seed).items():
            feeds[name][...] = array
        results = binding.run()
        assert results[0] is host
        assert results[1] is memory
        hidden, pooled = expected(lowered, feeds)
        np.testing.assert_allclose(host, pooled, atol=1e-5)
        np.testing.assert_allclose(device, hidden, atol=1e-5)


def test_rejects_a_feed_on_another_gpu(executable):
    feeds = tiny.feeds()
    array = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, device_id=1)
    with pytest.raises(InvalidFeeds, match=r"'input_ids'.*GPU 1.*GPU 0"):
        executable.bind(feeds, {"pooler_output": None}).run()


def test_waits_for_the_streams_of_feeds(lowered):
    memory = HostMemory()
    feeds = {
        name: DeviceArray(array.ctypes.data, array.shape, array.dtype, stream=stream, owner=array)
        for stream, (name, array) in enumerate(tiny.feeds().items(), start=11)
    }
    opened(lowered, memory=memory).bind(feeds, {"pooler_output": ON_DEVICE}).run()
    assert memory.waited == [11, 12, 13]


def test_a_run_that_races_close_opens_no_session(lowered):
    executable = opened(lowered)
    feeds = tiny.feeds(batch=1, length=8)
    feeds["attention_mask"][:] = [[0, 1, 1, 1, 1, 1, 1, 1]]
    binding = executable.bind(tiny.feeds(batch=1, length=8), {"pooler_output": None})
    binding.run()
    executable.close()
    for run in (lambda: executable.run(None, feeds), binding.run):
        with pytest.raises(BackendFailed, match="was closed"):
            run()
    assert executable.report().details["forms"] == []


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


def test_a_shape_whose_run_failed_is_not_replayed(lowered, monkeypatch):
    """ONNX Runtime replays what a failed run has recorded, without an error."""
    executable, failed = opened(lowered, graphs=2), set()
    real = onnxruntime.InferenceSession.run_with_iobinding
    feeds, others = (tiny.feeds(batch=2, length=length, seed=3) for length in (8, 16))
    assert_close(executable.run(None, others), expected(lowered, others))

    def run(session, binding, options):
        number = options.get_run_config_entry("gpu_graph_id")
        if number == "1":
            return real(session, binding, options)
        if number not in failed:
            failed.add(number)
            raise RuntimeError("a kernel failed")
        return None

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", run)
    with pytest.raises(BackendFailed, match="a kernel failed"):
        executable.run(None, feeds)
    for case in (feeds, others, feeds):
        assert_close(executable.run(None, case), expected(lowered, case))
    assert executable.report().details["cuda_graphs"]["shapes"] == ["lengths 2x16 2x16 2x16"]


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
def ran(monkeypatch):
    """By run: the number of its graph, and whether ONNX Runtime does not wait for the device."""
    seen, real = [], onnxruntime.InferenceSession.run_with_iobinding

    def noted(self, binding, options=None):
        try:
            waits = options.get_run_config_entry("disable_synchronize_execution_providers")
        except RuntimeError:  # it has no such entry
            waits = "0"
        seen.append((options.get_run_config_entry("gpu_graph_id"), waits))
        real(self, binding, options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", noted)
    return seen


def test_device_times_are_those_of_the_graph(lowered, ran):
    executable = opened(lowered, graphs=1)
    for length, number in ((8, "1"), (9, "-1")):  # the limit is one shape
        ran.clear()
        assert executable.device_times(tiny.feeds(batch=1, length=length), 3).tolist() == [0.25] * 3
        assert ran == [(number, "0")] * 3 + [(number, "1")] * 3, "warm-up, then runs without a wait between the events"


def test_device_times_without_graphs_use_a_new_session(lowered, ran):
    executable = opened(lowered)
    feeds = tiny.feeds(batch=1, length=8)
    feeds["attention_mask"][:] = 1
    assert executable.device_times(feeds, 2).tolist() == [0.25] * 2
    assert ran[-2:] == [("-1", "1")] * 2
    assert executable.report().details["forms"] == ["lengths"], "the session in use is another"


def test_without_pycuda_there_are_no_device_times(lowered):
    executable = opened(lowered)

    def missing():
        raise BackendUnavailable("ort-cuda", "no pycuda", "install it")

    executable.memory = missing
    feeds = tiny.feeds(batch=1, length=8)
    assert executable.device_times(feeds, 2) is None
    assert_close(executable.run(None, feeds), expected(lowered, feeds))
    ids = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(ids.ctypes.data, ids.shape, ids.dtype, stream=7, owner=ids)
    with pytest.raises(BackendUnavailable, match="no pycuda"):
        executable.run(None, feeds)


@pytest.mark.parametrize("graphs", [0, 1])
def test_a_mask_with_a_default_may_be_omitted(lowered, graphs):
    model = onnx.load(lowered.path, load_external_data=False)
    default = np.array([[1, 1, 0]])
    model.graph.initializer.append(onnx.numpy_helper.from_array(default, "attention_mask"))
    path = lowered.path.with_name("with-default.onnx")
    onnx.save(model, path)
    inputs = (replace(spec, overridable=spec.name == "attention_mask") for spec in lowered.info.inputs)
    with_default = replace(lowered, path=path, info=replace(lowered.info, inputs=tuple(inputs)))
    feeds = tiny.feeds(batch=1, length=3)
    del feeds["attention_mask"]
    reference = expected(lowered, {**feeds, "attention_mask": default})
    assert_close(opened(with_default, graphs=graphs).run(None, feeds), reference)
    with pytest.raises(InvalidFeeds, match=r"reads the input 'attention_mask', which is not fed"):
        opened(with_default, "lengths", graphs).run(None, feeds)
