"""Requests whose results are other ones in a batch, which nothing in the graph says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import exports
import isorun
from isorun.models.feeds import FeedChecker
from isorun.session.scheduling.collator import Collator
from isorun.session.scheduling.trials import Trials
from recorder import PADDABLE, small
from singles import assert_same

WIDTH = 32


def written(path: Path, nodes: Sequence[onnx.NodeProto], **constants: Any) -> Path:
    """An export whose hidden states are changed by further nodes, from ``hidden`` to ``y``."""
    proto = exports.proto("bert-torchscript17-eager")
    hidden = proto.graph.output[0].name
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = hidden if name == "hidden" else name
    arrays = {name: np.array(value) for name, value in constants.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    proto.graph.node.extend(nodes)
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", WIDTH]))
    onnx.save(proto, path)
    return path


def last_token(path: Path) -> Path:
    """The state of the last token that is not padding, whose id is 7: transformers' classifiers on decoders."""
    node = onnx.helper.make_node
    nodes = [
        node("Equal", ["input_ids", "padding_id"], ["is_padding"]),
        node("Not", ["is_padding"], ["is_real"]),
        node("Cast", ["is_real"], ["real"], to=onnx.TensorProto.INT64),
        node("ReduceSum", ["real", "along"], ["count"], keepdims=1),
        node("Sub", ["count", "one"], ["last"]),
        node("GatherND", ["hidden", "last"], ["y"], batch_dims=1),
    ]
    return written(path, nodes, padding_id=np.int64(7), along=np.array([1]), one=np.int64(1))


def share_of_padding(path: Path) -> Path:
    node = onnx.helper.make_node
    nodes = [
        node("Cast", ["attention_mask"], ["mask"], to=onnx.TensorProto.FLOAT),
        node("ReduceMean", ["mask"], ["share"], axes=[1], keepdims=1),
        node("Gather", ["hidden", "zero"], ["first"], axis=1),
        node("Mul", ["first", "share"], ["y"]),
    ]
    return written(path, nodes, zero=np.int64(0))


@pytest.mark.parametrize("make", [last_token, share_of_padding])
def test_rows_of_different_lengths_stay_apart_where_padding_is_seen(make: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with isorun.Session(make(tmp_path / "model.onnx"), "ort-cpu") as session:
        requests = []
        for length in (3, 9, 5, 9, 3, 12):
            ids = random.integers(8, 100, (1, length))
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            requests.append({spec.name: feeds[spec.name] for spec in session.get_inputs()})
        for feeds, result in zip(requests, session.map(requests, max_wait=60), strict=True):
            assert_same(result, session.run(None, feeds))


def trials() -> tuple[Collator, Trials]:
    collator = Collator(PADDABLE, FeedChecker(PADDABLE, any_mask=True))
    return collator, Trials(collator, exact=True)


def lengths_of(parts: list[list[Any]]) -> list[list[int]]:
    return [[request.length for request in part] for part in parts]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _: 0, [[3, 5, 3]]),
        (lambda ids: ids.shape[1], [[3, 3], [5]]),  # the length of the longest row
        (len, [[3, 3], [5]]),  # the number of rows: found of equal lengths only when they share a batch
    ],
)
def test_a_batch_is_divided_where_rows_get_other_results(
    change: Any, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    collator, tries = trials()
    runs: list[tuple[int, ...]] = []

    def run(_: Sequence[str], feeds: Any) -> list[np.ndarray]:
        runs.append(feeds["ids"].shape)
        return [feeds["ids"] + change(feeds["ids"])]

    requests = [collator.row(None, small(length)) for length in (3, 5, 3)]
    assert lengths_of(tries.parts(requests, run)) == expected
    assert runs == [(1, 3), (2, 5)]
    equal = tries.parts([requests[0], requests[2]], run)
    assert lengths_of(equal) == ([[3], [3]] if change is len else [[3, 3]])
    assert ("do not share batches" in caplog.text) == (len(expected) > 1)


def test_a_few_batches_are_tried() -> None:
    collator, tries = trials()
    runs = []

    def run(_: Sequence[str], feeds: Any) -> list[np.ndarray]:
        runs.append(feeds["ids"].shape)
        return [feeds["ids"]]

    requests = [collator.row(None, small(length)) for length in (3, 5)]
    for _ in range(9):
        assert len(tries.parts(requests, run)) == 1
    assert len(runs) == 6


def test_a_trial_that_another_lane_has_ended_meanwhile_allows_nothing() -> None:
    collator, tries = trials()
    requests = [collator.row(None, small(length)) for length in (3, 5)]

    def differing(_: Sequence[str], feeds: Any) -> list[np.ndarray]:
        return [feeds["ids"] + len(feeds["ids"])]

    def run(_: Sequence[str], feeds: Any) -> list[np.ndarray]:
        if len(feeds["ids"]) == 1:
            tries.parts(requests, differing)
        return [feeds["ids"]]

    assert lengths_of(tries.parts(requests, run)) == [[3], [5]]
    assert lengths_of(tries.parts(requests, run)) == [[3], [5]]
