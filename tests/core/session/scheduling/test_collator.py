"""Single requests made a batch, and its outputs made single results."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import exports
import isorun
import onnx_text
from isorun.errors import InvalidArgument, InvalidFeeds, IsorunError
from isorun.models.feeds import FeedChecker
from isorun.session.scheduling.collator import Collator
from isorun.types import TensorSpec
from recorder import FIXED, PADDABLE, Recorder, small
from singles import alone, assert_same, request


def test_masks_of_a_request_are_kept(encoder: isorun.Session) -> None:
    masks = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1] * 9, [0] * 5, [0] * 3]
    requests = [request(len(mask), seed, mask) for seed, mask in enumerate(masks)]
    for feeds, result in zip(requests, encoder.map(requests), strict=True):
        assert_same(result, alone(encoder, feeds))


def test_results_have_the_axis_that_requests_have(encoder: isorun.Session) -> None:
    row = request(5)
    batch_of_one = {name: array[None] for name, array in row.items()}
    first, second = encoder.map([row, batch_of_one], output_names=["pooler_output", "last_hidden_state"])
    assert [array.shape for array in first] == [(16,), (5, 16)]
    assert [array.shape for array in second] == [(1, 16), (1, 5, 16)]


def test_lists_are_taken_as_run_takes_them(encoder: isorun.Session) -> None:
    row = request(5)
    lists = {name: array.tolist() for name, array in row.items()}
    batch_of_one = {name: [array] for name, array in lists.items()}
    expected, plain, with_axis = encoder.map([row, lists, batch_of_one])
    assert_same(plain, expected)
    assert_same([array[0] for array in with_axis], expected)


def test_a_model_that_sees_padding_gets_none() -> None:
    model = Recorder()
    list(model.map([small(length) for length in [3, 4] * 4], FIXED, max_wait=60))
    assert sorted(model.batches) == [(4, 3), (4, 4)]


@pytest.mark.parametrize(
    ("text", "shape", "rows"),
    [
        ("g (float[samples] x) => (float[samples] y) { y = Relu (x) }", (160_000,), 1),
        ("g (float[steps, 2] x) => (float[2, steps] y) { y = Transpose (x) }", (300, 2), 1),
        ("g (float[rows, 2] x) => (float[rows, 2] y) { y = Relu (x) }", (300, 2), 300),
    ],
    ids=["signal", "one sequence", "rows"],
)
def test_rows_that_count_towards_max_queue(text: str, shape: tuple[int, ...], rows: int) -> None:
    with isorun.Session(onnx_text.graph(text), "reference") as session:
        collator = Collator(session.model_info, FeedChecker(session.model_info))
        request = collator.request(None, {"x": np.ones(shape, np.float32)}, shared=lambda: False)
    assert request.rows == rows


def test_more_than_one_row_is_no_request(encoder: isorun.Session) -> None:
    two = {name: np.stack([array, array]) for name, array in request(4).items()}
    with pytest.raises(InvalidFeeds, match="single row"):
        next(encoder.map([two]))


@pytest.mark.parametrize(
    "rest",
    [
        "float[2, 3] c) <float[2, 3] k = {1, 2, 3, 4, 5, 6}> { y = Neg (x)  c = Identity (k) }",
        "int64[2] c) { y = Neg (x)  c = Shape (x) }",
        "float c) <float k = {3}> { y = Neg (x)  c = Identity (k) }",
    ],
)
def test_an_output_without_rows_is_that_of_the_request_alone(rest: str) -> None:
    """Also where it happens to have as many parts as there are requests."""
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3] x) => (float[N, 3] y, '
    requests = [{"x": np.full((1, 3), number, np.float32)} for number in range(2)]
    with isorun.Session(onnx.parser.parse_model(text + rest), "ort-cpu") as session:
        for feeds, results in zip(requests, session.map(requests, max_wait=60), strict=True):
            assert_same(results, session.run(None, feeds))
        (dropped,) = session.map([{"x": requests[1]["x"][0]}])
        assert dropped[0].shape == (3,)
        np.testing.assert_array_equal(dropped[1], session.run(None, requests[1])[1])


def test_a_model_without_inputs_answers_each_request() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g () => (float[1, 2] y) <float[1, 2] k = {1, 2}> { y = Neg (k) }'
    with isorun.Session(onnx.parser.parse_model(text), "ort-cpu") as session:
        session.warmup()
        assert [results[0].tolist() for results in session.map([{}, {}])] == [[[-1, -2]]] * 2


@pytest.mark.parametrize("value", [float("nan"), "5", 0, True])
def test_the_size_of_a_batch_is_a_number(encoder: isorun.Session, value: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_tokens"):
        next(encoder.map([request(3)], max_tokens=value))


def test_outputs_without_rows_are_refused() -> None:
    info = replace(PADDABLE, outputs=(TensorSpec("sum", "tensor(int64)", ()),))
    collator = Collator(info, FeedChecker(info))
    with pytest.raises(IsorunError, match="'sum' does not have one row"):
        collator.split([np.array(3)], [collator.row(None, small(2))])


def test_an_unknown_output_is_refused_at_once(encoder: isorun.Session) -> None:
    with pytest.raises(InvalidFeeds, match="pooler_output"):
        encoder.map([], output_names=["pooler"])


@pytest.mark.parametrize("declared", [["batch", "sequence"], ["batch", "Add_dim_1", 16], [None, None, None]])
def test_outputs_with_other_axes_than_they_declare(declared: list[str | int | None]) -> None:
    """Exporters name the axes of every output alike, or as they like."""
    proto = onnx.load_from_string(exports.content("bert-torchscript17-eager"))
    words = next(node for node in proto.graph.node if node.op_type == "Gather" and "word" in node.input[0])
    of_tokens = len(declared) == 3
    name = words.output[0] if of_tokens else proto.graph.output[1].name
    if not of_tokens:
        del proto.graph.output[1]
    proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, declared))
    requests = [exports.feeds(["input_ids", "attention_mask", "token_type_ids"], length) for length in (5, 12, 9, 9)]
    requests = [{name: array[:1] for name, array in feeds.items()} for feeds in requests]
    with isorun.Session(proto, "ort-cpu", cache_dir=False) as session:
        for feeds, result in zip(requests, session.map(requests, max_wait=0.2), strict=True):
            assert_same(result, session.run(None, feeds))


def test_places_that_short_rows_do_not_have() -> None:
    proto = onnx.load_from_string(exports.content("bert-torchscript17-eager"))
    hidden = proto.graph.output[0].name
    for name, value in (("from", 0), ("to", 12), ("along", 1)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    proto.graph.node.append(onnx.helper.make_node("Slice", [hidden, "from", "to", "along"], ["y"]))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3))
    requests = [exports.feeds(["input_ids", "attention_mask", "token_type_ids"], length) for length in (5, 20, 9)]
    requests = [{name: array[:1] for name, array in feeds.items()} for feeds in requests]
    with isorun.Session(proto, "ort-cpu", cache_dir=False) as session:
        results = list(session.map(requests, max_wait=0.2))
    assert [result[0].shape[1] for result in results] == [5, 12, 9]


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
@pytest.mark.parametrize(
    ("text", "rows"), [("string[n]", ["a", "b\0", ""]), ("float[n]", [1.0, 2.0, 3.0]), ("int64[n]", [1, 2, 3])]
)
def test_results_of_rows_without_dimensions_are_arrays(backend: str, text: str, rows: list[Any]) -> None:
    model = onnx_text.graph(f"g ({text} x) => ({text} y) {{ y = Identity (x) }}")
    with isorun.Session(model, backend) as session:
        for max_tokens in (None, 1, 64):
            results = [result for (result,) in session.map([{"x": row} for row in rows], max_tokens=max_tokens)]
            assert [(type(result), result.shape) for result in results] == [(np.ndarray, ())] * 3
            assert [result.item() for result in results] == rows
