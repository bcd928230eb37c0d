"""CUDA graphs, and times on the device."""

import sys

import pytest

import fake_tensorrt
import tiny
from isorun.errors import BackendUnavailable
from tensorrt_sessions import assert_close, expected, on_device, open_session, to_host

pytestmark = pytest.mark.usefixtures("installed")


def test_each_recorded_shape_has_its_own_context(bert, tmp_path, graphs):
    with open_session(bert, tmp_path, cuda_graphs=2) as session:
        for seed in range(3):
            for length in (4, 5, 6):  # the third is above the limit and runs without a graph
                feeds = tiny.feeds(2, length, seed=seed)
                assert_close(session.run(None, feeds), expected(bert, feeds))
        assert [context.recorded for context in fake_tensorrt.contexts] == [True, True, False]
        assert [context.runs for context in fake_tensorrt.contexts] == [3, 3, 3]
    assert len(graphs) == 2


def test_feeds_on_the_device_use_another_context(bert, tmp_path, graphs):
    feeds = tiny.feeds()
    device_feeds = {name: on_device(array) for name, array in feeds.items()}
    with open_session(bert, tmp_path, cuda_graphs=4) as session:
        for _ in range(2):
            assert_close(session.run(None, feeds), expected(bert, feeds))
            outputs = session.run(None, device_feeds, device_outputs=True)
            assert_close(map(to_host, outputs), expected(bert, feeds))
    assert len(graphs) == 1


@pytest.mark.parametrize("limit", [0, 1])
def test_device_times_are_those_of_the_engine_alone(bert, tmp_path, graphs, limit):
    with open_session(bert, tmp_path, cuda_graphs=limit) as session:
        assert session.device_times(tiny.feeds(2, 7), runs=3).tolist() == [0.25] * 3
        (context,) = fake_tensorrt.contexts
        assert context.runs == 1 + 3, "one to warm up"


def test_graphs_require_cuda_bindings(bert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendUnavailable, match="cuda-bindings"):
        open_session(bert, tmp_path, cuda_graphs=1)
    assert fake_tensorrt.builds == []
