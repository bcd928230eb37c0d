"""The calling convention: functions as people write them for ``onnxruntime.InferenceSession``."""

import queue
import threading

import numpy as np
import pytest

import isorun
import tiny
from isorun.errors import InvalidFeeds, InvalidType


def embed_as_for_onnxruntime(session, rows):
    """Pad, feed what the model asks for by name, take the first output."""
    names = {node.name for node in session.get_inputs()}
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64)}
    if "token_type_ids" in names:
        feeds["token_type_ids"] = np.zeros_like(ids)
    hidden = session.run([session.get_outputs()[0].name], feeds)[0]
    return (hidden * feeds["attention_mask"][..., None]).sum(1) / feeds["attention_mask"].sum(1, keepdims=True)


def random_feeds_as_for_onnxruntime(session):
    """Benchmarks make feeds from what the session says of its inputs."""
    types = {"tensor(int64)": np.int64, "tensor(float)": np.float32}
    feeds = {}
    for node in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in node.shape]
        feeds[node.name] = np.ones(shape, types[node.type])
    return session.run(None, feeds)


def results_by_name_as_for_onnxruntime(session, feeds):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(output_names=names, input_feed=feeds), strict=True))


@pytest.fixture(scope="module")
def raw(bert):
    import onnxruntime

    return onnxruntime.InferenceSession(bert, providers=["CPUExecutionProvider"])


def test_code_for_onnxruntime_runs_on_every_backend(session, raw):
    rows = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    np.testing.assert_allclose(
        embed_as_for_onnxruntime(session, rows), embed_as_for_onnxruntime(raw, rows), rtol=0, atol=1e-5
    )
    for output, expected in zip(
        random_feeds_as_for_onnxruntime(session), random_feeds_as_for_onnxruntime(raw), strict=True
    ):
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)
    named = results_by_name_as_for_onnxruntime(session, tiny.feeds())
    assert list(named) == ["last_hidden_state", "pooler_output"]


def test_inputs_outputs_and_metadata_are_as_onnxruntime_says_them(session, raw):
    for ours, theirs in ((session.get_inputs(), raw.get_inputs()), (session.get_outputs(), raw.get_outputs())):
        assert [(v.name, v.type, list(v.shape)) for v in ours] == [(v.name, v.type, v.shape) for v in theirs]
    ours, theirs = session.get_modelmeta(), raw.get_modelmeta()
    assert ours.graph_name == theirs.graph_name == "encoder"
    assert ours.custom_metadata_map == theirs.custom_metadata_map
    assert session.get_providers()


def test_run_async_calls_back_with_the_users_data(session):
    done, got = threading.Event(), []

    def callback(outputs, user_data, error):
        got.append((outputs, user_data, error, threading.get_ident()))
        done.set()

    mine = object()
    session.run_async(["last_hidden_state"], tiny.feeds(), callback, mine)
    assert done.wait(20)
    outputs, user_data, error, thread = got[0]
    np.testing.assert_array_equal(outputs[0], session.run(None, tiny.feeds())[0])
    assert (user_data is mine, error) == (True, "")
    assert thread != threading.get_ident()


def test_run_async_rejects_a_callback_that_is_not_callable(session):
    with pytest.raises(InvalidType):
        session.run_async(None, tiny.feeds(), "callback", None)


def called_back(session, feeds):
    got = queue.SimpleQueue()
    session.run_async(None, feeds, lambda *arguments: got.put(arguments), None)
    return got.get(timeout=20)


def test_run_async_says_what_went_wrong(session):
    outputs, _, error = called_back(session, {})
    assert outputs == []
    assert "No feed for" in error


def test_run_async_calls_back_whatever_went_wrong(bert, monkeypatch):
    with isorun.Session(bert, backend="reference") as session:

        def run(*_):
            raise MemoryError

        monkeypatch.setattr(session._model, "run", run)
        assert called_back(session, tiny.feeds()) == ([], None, "MemoryError")


def test_what_a_callback_raises_is_logged(bert, caplog):
    def callback(*_):
        raise KeyError("the callback's own")

    with isorun.Session(bert, backend="ort-cpu") as session:
        session.run_async(None, tiny.feeds(), callback, None)
    assert "the callback's own" in caplog.text


def test_submit_gives_a_future(session):
    feeds = [tiny.feeds(*shape) for shape in tiny.SHAPES]
    futures = [session.submit(None, request) for request in feeds]
    for future, fed in zip(futures, feeds, strict=True):
        np.testing.assert_array_equal(future.result(20)[0], session.run(None, fed)[0])
    with pytest.raises(InvalidFeeds, match="No feed for"):
        session.submit(None, {}).result(20)


def test_run_options_are_refused(session):
    with pytest.raises(InvalidFeeds, match=r"run_options.*dict"):
        session.run(None, tiny.feeds(), {})


def test_no_names_of_outputs_are_all_names(session):
    assert len(session.run([], tiny.feeds())) == 2
