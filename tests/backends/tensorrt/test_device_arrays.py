"""Feeds, outputs and bindings in device memory."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import tiny
from bindings import bound
from isorun.errors import InvalidFeeds
from isorun.plugin.device_arrays import DeviceArray
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from tensorrt_sessions import assert_close, expected, on_device, open_session, to_host

pytestmark = pytest.mark.usefixtures("installed")


def test_feeds_and_outputs_on_the_device(bert, tmp_path, memory):
    feeds = tiny.feeds()
    device_feeds = {name: on_device(array) for name, array in feeds.items()}
    with open_session(bert, tmp_path) as session:
        outputs = session.run(None, device_feeds, device_outputs=True)
        assert_close(map(to_host, outputs), expected(bert, feeds))
        kept = to_host(outputs[1])
        session.run(None, tiny.feeds(seed=9), device_outputs=True)
        np.testing.assert_array_equal(to_host(outputs[1]), kept)
    assert memory.copied == 0


def test_unaligned_arrays_are_copied(bert, tmp_path, memory):
    feeds = tiny.feeds()
    device_feeds = {name: on_device(array, offset=8) for name, array in feeds.items()}
    place = on_device(np.zeros((2, tiny.WIDTH), np.float32), offset=4)
    with open_session(bert, tmp_path) as session:
        assert_close(session.run(None, device_feeds), expected(bert, feeds))
        assert memory.copied == len(device_feeds)
        binding = bound(session, feeds)
        binding.bind_output("pooler_output", "cuda", 0, np.float32, place.shape, place.address)
        session.run_with_iobinding(binding)
        assert_close([to_host(place)], expected(bert, feeds)[1:])


def test_a_binding_writes_to_the_given_memory_and_rereads_feeds(bert, tmp_path):
    feeds = tiny.feeds()
    hidden, pooled = expected(bert, feeds)
    host, place = np.empty_like(hidden), on_device(np.zeros_like(pooled))
    with open_session(bert, tmp_path) as session:
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_device_input(name, on_device(array))
        binding.bind_output("last_hidden_state", "cpu", 0, host.dtype, host.shape, host.ctypes.data)
        binding.bind_output("pooler_output", "cuda", 0, place.dtype, place.shape, place.address)
        session.run_with_iobinding(binding)
        assert_close([host, to_host(place)], [hidden, pooled])
        binding.clear_binding_outputs()
        binding.bind_output("pooler_output", "cuda")
        binding.bind_output("last_hidden_state")
        for seed in (4, 5):
            changed = tiny.feeds(seed=seed)
            for name, array in changed.items():
                binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
            outputs = [output.value() for output in binding.get_outputs()]
            assert isinstance(outputs[0], DeviceArray)
            assert_close([outputs[1], to_host(outputs[0])], expected(bert, changed))


def test_rejects_memory_of_another_shape(bert, tmp_path):
    with open_session(bert, tmp_path) as session:
        binding = bound(session, tiny.feeds())
        place = on_device(np.zeros((3, tiny.WIDTH), np.float32))
        binding.bind_output("pooler_output", "cuda", 0, place.dtype, place.shape, place.address)
        with pytest.raises(InvalidFeeds, match="pooler_output"):
            session.run_with_iobinding(binding)


def test_rejects_a_feed_on_another_gpu(bert, tmp_path):
    feeds = tiny.feeds()
    array = feeds["input_ids"]
    feeds["input_ids"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, device_id=1)
    refused = pytest.raises(InvalidFeeds, match=r"'input_ids'.*GPU 1.*GPU 0")
    with open_session(bert, tmp_path) as session, refused:
        session.run(None, feeds)


def test_rejects_a_feed_that_may_be_on_another_gpu(bert, tmp_path, monkeypatch):
    """`__cuda_array_interface__` has no number of a GPU."""
    feeds = {name: on_device(array) for name, array in tiny.feeds().items()}
    feeds["input_ids"] = replace(feeds["input_ids"], device_id=None)
    with open_session(bert, tmp_path) as session:
        session.run(None, feeds)
        gpu = Gpu("A GPU", "9.0", 1 << 30)
        monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.driver", lambda: Driver("13.0", (gpu, gpu), ""))
        with pytest.raises(InvalidFeeds, match=r"'input_ids' does not say on which GPU"):
            session.run(None, feeds)


def test_results_on_the_device_outlive_their_session(bert, tmp_path):
    feeds = tiny.feeds()
    with open_session(bert, tmp_path) as session:
        results = session.run(None, feeds, device_outputs=True)
    owner = weakref.ref(results[0].owner.held)
    assert_close(map(to_host, results), expected(bert, feeds))
    del results
    gc.collect()
    assert owner() is None
