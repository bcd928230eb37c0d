"""Single requests through batches: each gets what it would have got alone, whatever the others do."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isorun
from isorun import batching
from isorun.errors import BackendFailed, InvalidFeeds, IsorunError
from isorun.graph import encoder, files
from isorun.model import Padding
from isorun.types import Feeds, ModelInfo, TensorSpec

VOCABULARY = 60
INPUTS = tuple(TensorSpec(name, "tensor(int64)", ("batch", "sequence")) for name in ("ids", "mask"))
INFO = ModelInfo(INPUTS, (TensorSpec("each", "tensor(int64)", ("batch", "sequence")),), 17)
PADDABLE = Padding("mask", ("each",))
FIXED = Padding(None, refusal="It reads its padding")


class Weights:
    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """There is a tensor for every name and shape."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng(sum(name.encode()))
        return (random.standard_normal(shape) * 0.4 + name.endswith("LayerNorm.weight")).astype(np.float32)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[isorun.Session]:
    folder = tmp_path_factory.mktemp("batching")
    config = encoder.EncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    files.write(encoder.encoder(config, Weights(), "tiny"), folder / "model.onnx", beside_above=2**30)
    with isorun.Session(folder / "model.onnx", "ort-cpu", threads=1, cache_dir=folder / "cache") as opened:
        yield opened


def request(length: int, seed: int = 0, mask: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    random = np.random.default_rng([length, seed])
    return {
        "input_ids": random.integers(0, VOCABULARY, length),
        "attention_mask": np.ones(length, np.int64) if mask is None else np.array(mask),
        "token_type_ids": random.integers(0, 2, length),
    }


def alone(session: isorun.Session, feeds: Feeds) -> list[np.ndarray]:
    return [output[0] for output in session.run(None, {name: array[None] for name, array in feeds.items()})]


def assert_same(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=2e-5)


class Recorder:
    """A model whose output for each token is its id, and which remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.poison = -1

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        self.batches.append(feeds["ids"].shape)
        if self.poison in feeds["ids"]:
            raise BackendFailed("poisoned")
        return [feeds["ids"] * (feeds["mask"] != 0)]

    def map(self, requests: Any, padding: Padding = PADDABLE, **wishes: Any) -> batching.Results:
        wishes = {"max_tokens": 64, "max_wait": 0.05, "return_exceptions": False, **wishes}
        return batching.results(requests, self.run, batching.Layout(INFO, padding, None), **wishes)


def small(length: int, value: int = 1) -> dict[str, np.ndarray]:
    return {"ids": np.full(length, value), "mask": np.ones(length, np.int64)}


def test_each_gets_its_own_in_order(session: isorun.Session) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 60)
    requests = [request(int(length), seed) for seed, length in enumerate(lengths)]
    with session.map(requests, max_tokens=200) as results:
        for feeds, result in zip(requests, results, strict=True):
            assert_same(result, alone(session, feeds))


def test_masks_of_a_request_are_kept(session: isorun.Session) -> None:
    masks = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1] * 9, [0] * 5, [0] * 3]
    requests = [request(len(mask), seed, mask) for seed, mask in enumerate(masks)]
    for feeds, result in zip(requests, session.map(requests), strict=True):
        assert_same(result, alone(session, feeds))


def test_results_have_the_axis_that_requests_have(session: isorun.Session) -> None:
    row = request(5)
    batch_of_one = {name: array[None] for name, array in row.items()}
    first, second = session.map([row, batch_of_one], output_names=["pooler_output", "last_hidden_state"])
    assert [array.shape for array in first] == [(16,), (5, 16)]
    assert [array.shape for array in second] == [(1, 16), (1, 5, 16)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=40),
    max_tokens=st.integers(1, 80),
    padding=st.sampled_from((PADDABLE, FIXED)),
)
def test_any_lengths_within_any_budget(lengths: list[int], max_tokens: int, padding: Padding) -> None:
    model = Recorder()
    requests = [small(length, value) for value, length in enumerate(lengths)]
    got = list(model.map(requests, padding, max_tokens=max_tokens))
    assert [result[0].tolist() for result in got] == [feeds["ids"].tolist() for feeds in requests]
    assert sum(rows for rows, _ in model.batches) == len(requests)
    assert all(rows == 1 or rows * longest <= max_tokens for rows, longest in model.batches)


def test_like_lengths_share_a_batch() -> None:
    model = Recorder()
    list(model.map([small(length) for length in [2, 30] * 8], max_tokens=60, max_wait=60))
    assert sum(rows * longest for rows, longest in model.batches) == 8 * 2 + 8 * 30  # nothing was padded
    assert len(model.batches) < 16


def test_a_model_that_sees_padding_gets_none() -> None:
    model = Recorder()
    list(model.map([small(length) for length in [3, 4] * 4], FIXED, max_wait=60))
    assert sorted(model.batches) == [(4, 3), (4, 4)]


def test_an_error_is_its_request_s_alone(session: isorun.Session) -> None:
    bad_index = request(4)
    bad_index["input_ids"][2] = VOCABULARY
    bad_type = {**request(4), "input_ids": np.ones(4, np.float32)}
    requests: list[Any] = [request(3), bad_index, request(5), bad_type, {}, None, request(6)]
    results = session.map(requests)
    assert_same(next(results), alone(session, requests[0]))
    with pytest.raises(InvalidFeeds, match=r"holds 60 at \[0, 2\]"):
        next(results)
    assert_same(next(results), alone(session, requests[2]))
    with pytest.raises(InvalidFeeds, match="float32"):
        next(results)
    with pytest.raises(InvalidFeeds, match="No feed for"):
        next(results)
    with pytest.raises(InvalidFeeds, match="mapping"):
        next(results)
    assert_same(next(results), alone(session, requests[6]))
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_a_batch_that_fails_is_run_again_one_by_one() -> None:
    model = Recorder()
    model.poison = 3
    results = model.map([small(4, value) for value in range(1, 6)], max_wait=60, return_exceptions=True)
    got = list(results)
    assert isinstance(got[2], BackendFailed)
    assert [result[0][0] for index, result in enumerate(got) if index != 2] == [1, 2, 4, 5]
    assert model.batches == [(5, 4)] + [(1, 4)] * 5


def test_more_than_one_row_is_no_request(session: isorun.Session) -> None:
    two = {name: np.stack([array, array]) for name, array in request(4).items()}
    with pytest.raises(InvalidFeeds, match="single row"):
        next(session.map([two]))


def test_an_error_of_the_iterable_comes_after_its_results() -> None:
    def requests() -> Iterator[Feeds]:
        yield small(2, 5)
        raise OSError("the disk is gone")

    results = Recorder().map(requests(), return_exceptions=True)
    assert next(results)[0].tolist() == [5, 5]
    with pytest.raises(OSError, match="disk"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_an_endless_stream_is_read_no_further_than_a_window() -> None:
    read = itertools.count()
    closed = threading.Event()

    def requests() -> Iterator[Feeds]:
        try:
            while True:
                yield small(8, next(read))
        finally:
            closed.set()

    results = Recorder().map(requests(), max_tokens=64)
    for number in range(100):
        assert next(results)[0][0] == number
    time.sleep(0.1)
    assert next(read) <= 100 + 4 * 64 // 8 + 2
    results.close()
    results.close()
    assert closed.wait(5)
    with pytest.raises(StopIteration):
        next(results)


def test_leaving_early_stops_the_threads() -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("isorun-")}

    before = threads()
    with Recorder().map(small(3) for _ in itertools.count()) as results:
        next(results)
    results = Recorder().map(small(3) for _ in itertools.count())
    next(results)
    del results
    finished = Recorder().map([small(3)])
    assert len(list(finished)) == 1
    for _ in range(100):
        if threads() <= before:
            break
        time.sleep(0.05)
    assert threads() <= before


def test_a_slow_stream_waits_no_longer_than_asked() -> None:
    more = threading.Event()

    def requests() -> Iterator[Feeds]:
        yield small(2, 7)
        more.wait(30)

    results = Recorder().map(requests(), max_wait=0.01)
    start = time.monotonic()
    assert next(results)[0].tolist() == [7, 7]
    assert time.monotonic() - start < 20
    more.set()
    assert list(results) == []


def test_outputs_without_rows_are_refused() -> None:
    info = ModelInfo(INPUTS, (TensorSpec("sum", "tensor(int64)", ()),), 17)
    layout = batching.Layout(info, PADDABLE, None)
    results = batching.results(
        [small(2)],
        lambda names, feeds: [np.array(3)],
        layout,
        max_tokens=8,
        max_wait=0,
        return_exceptions=False,
    )
    with pytest.raises(IsorunError, match="'sum' does not have a row for each"):
        next(results)


def test_an_unknown_output_is_refused_at_once(session: isorun.Session) -> None:
    with pytest.raises(InvalidFeeds, match="pooler_output"):
        session.map([], output_names=["pooler"])


def test_arun(session: isorun.Session) -> None:
    feeds = {name: array[None] for name, array in request(4).items()}

    async def work() -> list[Any]:
        return await session.arun(["pooler_output"], feeds)

    np.testing.assert_array_equal(asyncio.run(work())[0], session.run(["pooler_output"], feeds)[0])


def test_concurrent_callers_share_batches(session: isorun.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def run(names: Sequence[str], feeds: Feeds) -> list[Any]:
        shapes.append(feeds["input_ids"].shape)
        return isorun.Session.run(session, names, feeds)

    monkeypatch.setattr(session, "run", run)
    requests = [request(length) for length in (3, 9, 4, 8, 5)]
    bad = {**request(4), "input_ids": np.ones(4, np.float32)}

    async def work() -> list[Any]:
        calls = [session.arun(None, feeds, max_tokens=60, max_wait=5) for feeds in [*requests, bad, request(6)]]
        return await asyncio.gather(*calls, return_exceptions=True)

    *got, failed, _ = asyncio.run(work())
    assert isinstance(failed, InvalidFeeds)
    assert shapes == [(6, 9)]
    for feeds, result in zip(requests, got, strict=True):
        assert_same(result, alone(session, feeds))


def test_a_caller_that_gives_up_is_not_run() -> None:
    model = Recorder()
    batcher = batching.Batcher(model.run, batching.Layout(INFO, PADDABLE, None), 100, 0.2, enough=100)
    gone, _ = batcher.submit(small(3))
    stays, _ = batcher.submit(small(4, 9))
    assert gone.cancel()
    assert stays.result(20)[0].tolist() == [9] * 4
    assert model.batches == [(1, 4)]
    batcher.close(cancel=True)
    with pytest.raises(IsorunError, match="closed"):
        batcher.submit(small(2))


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_runs_or_cancels_what_waits(cancel: bool) -> None:
    model = Recorder()
    batcher = batching.Batcher(model.run, batching.Layout(INFO, PADDABLE, None), 100, 60, enough=100)
    future, _ = batcher.submit(small(3))
    batcher.close(cancel=cancel)
    assert future.cancelled() is cancel
    assert len(model.batches) == (0 if cancel else 1)


def test_a_closed_session_takes_nothing(session: isorun.Session, tmp_path: Path) -> None:
    source = session._source.path
    opened = isorun.Session(source, "ort-cpu", threads=1, cache_dir=tmp_path)
    opened.close()
    with pytest.raises(IsorunError, match="closed"):
        opened.map([])
    with pytest.raises(IsorunError, match="closed"):
        asyncio.run(opened.arun(None, {}, max_tokens=8))
