"""Arguments of sessions and text models that are no such thing: each is refused by name, before any work."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import sentence_models
import tiny
from isorun.errors import InvalidArgument, InvalidFeeds, InvalidType

NAN = float("nan")


@pytest.fixture(scope="module")
def session(bert: Path) -> Iterator[isorun.Session]:
    with isorun.Session(bert, "ort-cpu", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that embeds ids and parts."""
    folder = sentence_models.write_sentence_model(tmp_path_factory.mktemp("model"))
    tiny.edit(folder / "1_Pooling" / "config.json", pooling_mode=["mean", "max"], include_prompt=True)
    return folder


OPENED_WITH: dict[str, list[Any]] = {
    "backend": [3, np.array([1, 2])],
    "precision": [5, None, np.array([1, 2])],
    "padding": [5, None, np.array([1, 2])],
    "environment": [5, b"name", ["name"]],
    "deterministic": [1, None, "yes"],
    "threads": [1.5, "2", True],
    "max_queue": ["3", NAN, 1.5, True, 0, None, [4]],
    "verify_cache": ["0", 0, []],
    "cache_dir": ["", 5, [], True, b"folder", "a\0b"],
    "calibration": [5, "a text"],
    "tolerance": ["0.9", NAN, True, [0.9]],
    "outputs": [5, "hidden", {"hidden"}, True],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OPENED_WITH.items() for value in values])
def test_a_session_is_not_opened_with_something_else(bert: Path, name: str, value: Any) -> None:
    arguments = {"backend": "ort-cpu", name: value}
    if name in ("calibration", "tolerance"):
        arguments["precision"] = "auto"
    with pytest.raises((InvalidArgument, InvalidFeeds), match=name.removesuffix("_dir")):
        isorun.Session(bert, **arguments)


@pytest.mark.parametrize("name", ["device", "threads", "max_queue", "tolerance", "outputs", "padding"])
def test_a_value_of_the_wrong_type_is_a_type_error(bert: Path, name: str) -> None:
    with pytest.raises(InvalidType):
        isorun.Session(bert, "ort-cpu", **{"precision": "auto", name: [5]})


def test_a_wrong_type_is_a_type_error_and_an_invalid_argument(bert: Path) -> None:
    with pytest.raises(TypeError, match="options") as caught:
        isorun.Session(bert, "ort-cpu", options=["threads"])  # type: ignore[arg-type]
    assert isinstance(caught.value, InvalidType)
    assert isinstance(caught.value, ValueError)


def test_scalars_of_numpy_are_arguments(bert: Path) -> None:
    """Also those of few bits, with which arithmetic would overflow."""
    row = {name: np.ones(8, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    options = {"deterministic": np.False_, "inter_op_threads": np.int8(1)}
    with isorun.Session(
        bert,
        "ort-cpu",
        threads=np.int8(1),  # type: ignore[arg-type]
        max_queue=np.uint8(200),  # type: ignore[arg-type]
        deterministic=np.False_,  # type: ignore[arg-type]
        verify_cache=np.False_,  # type: ignore[arg-type]
        options=options,
    ) as session:
        feeds = {name: array[None] for name, array in row.items()}
        expected = session.run(None, feeds)
        results = [
            session.run(None, feeds, device_outputs=np.False_),  # type: ignore[arg-type]
            asyncio.run(session.arun(None, feeds, max_tokens=np.int8(100), timeout=np.float32(60))),  # type: ignore
            *session.map([feeds] * 40, max_tokens=np.int8(100), max_wait=np.float16(0.5)),  # type: ignore
        ]
        for result in results:
            for array, same in zip(result, expected, strict=True):
                np.testing.assert_allclose(array, same, atol=1e-5)
        assert json.dumps(session.provenance.as_dict())
        session.warmup([(np.int64(1), np.int8(8))], measure=np.False_)  # type: ignore


CALLS: dict[str, tuple[str, Callable[[isorun.Session, Any], Any]]] = {
    "warmup": ("on", lambda session, value: session.warmup(value)),
    "warmup, measure": ("measure", lambda session, value: session.warmup([(1, 4)], measure=value)),
    "map": ("requests", lambda session, value: session.map(value)),
    "map, max_tokens": ("max_tokens", lambda session, value: session.map([], max_tokens=value)),
    "map, max_wait": ("max_wait", lambda session, value: session.map([], max_wait=value)),
    "map, exceptions": ("return_exceptions", lambda session, value: session.map([], return_exceptions=value)),
    "arun, max_tokens": ("max_tokens", lambda session, value: asyncio.run(session.arun(None, {}, max_tokens=value))),
    "arun, max_wait": ("max_wait", lambda session, value: asyncio.run(session.arun(None, {}, max_wait=value))),
    "arun_many": ("input_feeds", lambda session, value: asyncio.run(session.arun_many(None, value))),
    "run_batches": ("batches", lambda session, value: list(session.run_batches(None, value))),
    "device_times": ("runs", lambda session, value: session.device_times({}, runs=value)),
}
WRONG = [5.5, -1, NAN, "text", b"bytes", {"input_ids": [[1]]}, object(), np.array([[1, 2], [3, 4]])]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("call", "value"),
    [(call, value) for call in CALLS for value in WRONG if not (call.endswith("max_wait") and value is WRONG[0])],
)
def test_a_call_is_not_made_with_something_else(session: isorun.Session, call: str, value: Any) -> None:
    name, run = CALLS[call]
    if name in ("on", "requests", "batches") and isinstance(value, np.ndarray):
        with pytest.raises(InvalidFeeds):
            list(run(session, value))
    else:
        with pytest.raises(InvalidArgument, match=name):
            run(session, value)


def test_what_is_a_generator_has_no_length(session: isorun.Session) -> None:
    with pytest.raises(InvalidType, match=r"input_feeds.*Make a list"):
        asyncio.run(session.arun_many(None, (feeds for feeds in ())))  # type: ignore[arg-type]


EMBEDDERS: dict[str, list[Any]] = {
    "model": ["", 5, None, ["a"]],
    "pooling": [5, [3], "first", np.array("mean")],
    "deterministic": [np.array([1, 2])],
    "task": [5, ["query"]],
    "quantize": [5, ["int8"]],
    "default_prompt": ["", ["query"]],
    "truncate_dim": [0, 1.5, True],
    "max_length": ["5", 0],
    "batch_tokens": [0, NAN],
    "normalize": [0, "yes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in EMBEDDERS.items() for value in values])
def test_an_embedder_is_not_opened_with_something_else(sentence_model: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name.removeprefix("default_")):
        isorun.Embedder(**{"model": sentence_model, "backend": "ort-cpu", name: value})


def test_ranges_of_two_lengths_are_refused(sentence_model: Path) -> None:
    with pytest.raises(InvalidArgument, match="ranges"):
        isorun.Embedder(sentence_model, backend="ort-cpu", quantize="int8", ranges=[[1.0, 2.0], [3.0]])


EMBEDDED: dict[str, tuple[str, Callable[[isorun.Embedder, Any], Any]]] = {
    "encode_ids": ("ids", lambda embedder, value: embedder.encode_ids(value)),
    "embed_parts": ("spans", lambda embedder, value: embedder.embed_parts("text", value)),
    "prompt_name": ("prompt", lambda embedder, value: embedder.embed(["text"], prompt_name=value)),
    "progress": ("progress", lambda embedder, value: embedder.embed(["text"], progress=value)),
    "compatible_with": ("record", lambda embedder, value: embedder.compatible_with(value)),
}


@pytest.fixture(scope="module")
def embedder(sentence_model: Path) -> Iterator[isorun.Embedder]:
    with isorun.Embedder(sentence_model, backend="ort-cpu") as opened:
        yield opened


@pytest.mark.parametrize("call", EMBEDDED)
@pytest.mark.parametrize("value", [5, "text", object(), np.array(5)], ids=lambda value: type(value).__name__)
def test_texts_are_not_embedded_with_something_else(embedder: isorun.Embedder, call: str, value: Any) -> None:
    name, run = EMBEDDED[call]
    with pytest.raises(InvalidArgument, match=name):
        run(embedder, value)
