"""What runs models on a GPU, with the CPU in its place: ONNX Runtime's calls are the same, and memory of the host
plays the device's."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest

import tiny
from isorun import model as models
from isorun.cache import Cache
from isorun.device_arrays import ON_DEVICE, DeviceArray, adopt
from isorun.errors import InvalidFeeds
from isorun.types import RuntimeReport
from isorun_backends.onnxruntime import cuda_attention
from isorun_backends.onnxruntime.cuda_session import CudaExecutable, Device, Masks

CPU = ["CPUExecutionProvider"]


@pytest.fixture(scope="module")
def lowered(bert):
    cache = Cache()
    return models.lower(models.open_model(bert, cache), ("com.microsoft",), cache)


@pytest.fixture
def executable(lowered):
    return opened(lowered)


def opened(lowered, wanted="auto", graphs=0):
    forms = cuda_attention.forms(lowered.path)

    def open_form(form):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(lowered.path.parent)
        )
        return onnxruntime.InferenceSession(forms.models[form], options, providers=CPU)

    def describe(sessions, details):
        return RuntimeReport("host", "fp32", {}, {}, {"forms": list(sessions), **details})

    masks = Masks(forms.mask, wanted)
    return CudaExecutable("ort-cuda", open_form, lowered.info, Device("cpu", 0), masks, describe, graphs)


def expected(lowered, feeds):
    return onnxruntime.InferenceSession(str(lowered.path), providers=CPU).run(None, feeds)


def on_device(feeds):
    """The same memory, said to be a device's."""
    return {
        name: DeviceArray(array.ctypes.data, array.shape, array.dtype, owner=array) for name, array in feeds.items()
    }


def array_of(value: DeviceArray) -> np.ndarray:
    import ctypes

    memory = (ctypes.c_char * value.nbytes).from_address(value.address)
    return np.frombuffer(memory, value.dtype).reshape(value.shape)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_forms_are_opened_when_a_mask_calls_for_them(executable, lowered):
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


def test_a_form_that_was_asked_for_is_taken_or_refused(lowered):
    executable = opened(lowered, "lengths")
    feeds = tiny.feeds(batch=1, length=8)
    feeds["attention_mask"][:] = [[0, 1, 1, 1, 1, 1, 1, 1]]
    with pytest.raises(InvalidFeeds, match=r"'attention': 'lengths'.*'attention_mask'.*padded on the right"):
        executable.run(None, feeds)
    feeds["attention_mask"][:] = [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert_close(executable.run(None, feeds), expected(lowered, feeds))


def test_results_belong_to_the_caller(executable):
    first = executable.run(None, tiny.feeds(seed=1))
    kept = [array.copy() for array in first]
    executable.run(None, tiny.feeds(seed=2))
    for array, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_feeds_and_outputs_that_stay_on_the_device(executable, lowered):
    feeds = tiny.feeds()
    found = executable.run_on_device(None, on_device(feeds))
    assert all(isinstance(value, DeviceArray) for value in found)
    assert executable.report().details["forms"][-1] == "plain", "a mask on the device is not looked at"
    assert_close([array_of(value) for value in found], expected(lowered, feeds))
    again = executable.run_on_device(["pooler_output"], feeds)
    assert_close([array_of(value) for value in again], expected(lowered, feeds)[1:])
    taken = adopt({"x": again[0]})["x"]
    assert taken.dtype == np.float32


def test_what_is_left_on_the_device_is_not_written_over(executable):
    (first,) = executable.run_on_device(["pooler_output"], tiny.feeds(seed=1))
    kept = array_of(first).copy()
    executable.run_on_device(["pooler_output"], tiny.feeds(seed=2))
    np.testing.assert_array_equal(array_of(first), kept)


def test_a_binding_writes_where_it_was_told_and_reads_anew(executable, lowered):
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


def test_a_feed_on_another_gpu_is_refused(executable):
    feeds = tiny.feeds()
    array = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, device_id=1)
    with pytest.raises(InvalidFeeds, match="'input_ids' is on GPU 1; this session is on GPU 0"):
        executable.bind(feeds, {"pooler_output": None}).run()


def test_a_stream_is_waited_for(executable, monkeypatch):
    waited = []
    monkeypatch.setattr("isorun_backends.cuda_driver.synchronize", waited.append)
    feeds = tiny.feeds()
    given = {
        name: DeviceArray(array.ctypes.data, array.shape, array.dtype, stream=stream)
        for stream, (name, array) in enumerate(feeds.items(), start=7)
    }
    executable.bind(given, {"pooler_output": ON_DEVICE}).run()
    assert waited == [7, 8, 9]


def test_graphs_keep_buffers_by_shape_and_no_more_than_asked(lowered):
    executable = opened(lowered, graphs=2)
    for seed in (1, 2):
        for length in (8, 16, 24):
            feeds = tiny.feeds(batch=2, length=length, seed=seed)
            feeds["attention_mask"][:] = 1
            assert_close(executable.run(None, feeds), expected(lowered, feeds))
            assert_close(executable.run(["pooler_output"], feeds), expected(lowered, feeds)[1:])
    described = executable.report().details["cuda_graphs"]
    assert described["most"] == 2
    assert described["shapes"] == ["lengths 2x8 2x8 2x8", "lengths 2x16 2x16 2x16"]


def test_graphs_give_results_that_no_later_run_changes(lowered):
    executable = opened(lowered, graphs=1)
    (first,) = executable.run(["pooler_output"], tiny.feeds(seed=1))
    kept = first.copy()
    executable.run(["pooler_output"], tiny.feeds(seed=2))
    np.testing.assert_array_equal(first, kept)


def test_many_threads_at_once(lowered):
    executable = opened(lowered, graphs=1)
    cases = [tiny.feeds(batch=batch, length=length, seed=3) for batch in (1, 2) for length in (8, 9)]
    wanted = [expected(lowered, feeds) for feeds in cases]
    wrong = []

    def work():
        for _ in range(5):
            for feeds, answer in zip(cases, wanted, strict=True):
                found = executable.run(None, feeds)
                wrong.extend(not np.allclose(one, other, atol=1e-5) for one, other in zip(found, answer, strict=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 4 * 5 * 4 * 2
    assert not any(wrong)
