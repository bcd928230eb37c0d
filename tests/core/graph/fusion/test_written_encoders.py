"""Encoders of people's own: each is right on every backend, whether its attention is fused or left alone."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import exports
import isorun
from isorun.errors import UnsupportedModel
from isorun.graph import pipeline
from written_encoders import HEADS, VOCABULARY, WIDTH, Graph, begun, check, feeds_of

LENGTH = 20
SLOPES = np.array([0.5, 0.06], np.float32).reshape(1, HEADS, 1, 1)
RATES = (10000.0 ** (-np.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))).astype(np.float32)


def bucketed(graph: Graph, ids: str) -> str:
    """A bias by distance, alike from 8 on: (1, N, S, S)."""
    rows = graph.node("Add", graph.node("Clip", graph.distances(ids), -8, 8), 8)
    by_place = graph.node("Gather", graph.weight(17, HEADS, scale=2.0), rows)
    return str(graph.node("Unsqueeze", graph.node("Transpose", by_place, perm=[2, 0, 1]), [0]))


def distance(graph: Graph, ids: str) -> str:
    """(1, 1, S, S)."""
    far = graph.node("Unsqueeze", graph.node("Abs", graph.distances(ids)), [0, 1])
    return str(graph.node("Cast", far, to=TensorProto.FLOAT))


def rotary(graph: Graph, ids: str) -> Callable[[str], str]:
    places = graph.node("Cast", graph.node("Unsqueeze", graph.places(ids), [0, 2]), to=TensorProto.FLOAT)
    angles = graph.node("Mul", places, RATES[None, None])
    cos, sin = (graph.node("Unsqueeze", graph.node(name, angles), [1]) for name in ("Cos", "Sin"))

    def turned(heads: str) -> str:
        first, second = graph.node("Split", heads, outputs=2, axis=-1)
        parts = (
            graph.node("Sub", graph.node("Mul", first, cos), graph.node("Mul", second, sin)),
            graph.node("Add", graph.node("Mul", second, cos), graph.node("Mul", first, sin)),
        )
        return str(graph.node("Concat", *parts, axis=-1))

    return turned


def with_user(graph: Graph, hidden: str) -> onnx.ModelProto:
    """The first token, and a row of a longer table than that of words for a number of each row."""
    user = graph.input("user_id", "B", 1)
    row = graph.node("ReduceMean", graph.node("Gather", graph.weight(1000, WIDTH), user), axes=[1], keepdims=0)
    graph.output(graph.node("Add", graph.node("Gather", hidden, 0, axis=1), row), "pooled", "B", WIDTH)
    return graph.model()


def of_tokens(graph: Graph, hidden: str) -> onnx.ModelProto:
    graph.output(hidden, "hidden", "B", "S", WIDTH)
    return graph.model()


def rotated() -> onnx.ModelProto:
    graph, ids, mask = begun()
    return with_user(graph, graph.layer(graph.embedded(ids), graph.adding(graph.mask(mask)), rotary(graph, ids)))


def biased(
    bias: Callable[[Graph, str], str], ends: Callable[[Graph, str], onnx.ModelProto] = of_tokens
) -> onnx.ModelProto:
    """An encoder with a bias beside its mask."""
    graph, ids, mask = begun()
    added = graph.node("Add", bias(graph, ids), graph.mask(mask))
    return ends(graph, graph.layer(graph.embedded(ids), graph.adding(added)))


def slopes(graph: Graph, ids: str) -> str:
    return str(graph.node("Mul", graph.node("Neg", distance(graph, ids)), SLOPES))


def slopes_by_length(graph: Graph, ids: str) -> str:
    length = graph.node("Cast", graph.length(ids), to=TensorProto.FLOAT)
    return str(graph.node("Mul", graph.node("Div", distance(graph, ids), length), -16 * SLOPES))


def buckets_scaled_in_short_rows(graph: Graph, ids: str) -> str:
    length = graph.node("Cast", graph.length(ids), to=TensorProto.FLOAT)
    return str(graph.node("Mul", bucketed(graph, ids), graph.node("Min", graph.node("Div", length, 64.0), 1.0)))


def for_each_key(graph: Graph, ids: str) -> str:
    places = graph.node("Cast", graph.node("Unsqueeze", graph.places(ids), [0, 1, 2]), to=TensorProto.FLOAT)
    return str(graph.node("Mul", places, SLOPES))


def of_two_dimensions(graph: Graph, ids: str) -> str:
    return str(graph.node("Sin", graph.node("Cast", graph.distances(ids), to=TensorProto.FLOAT)))


def small_number_for_masked_scores() -> onnx.ModelProto:
    graph, ids, mask = begun()
    none = graph.node("Equal", graph.node("Unsqueeze", mask, [1, 2]), 0)
    put = lambda scores: str(graph.node("Where", none, -30.0, scores))  # noqa: E731
    return of_tokens(graph, graph.layer(graph.embedded(ids), put, sharpness=20.0))


def counted_by_the_mask(positions: Callable[[Graph, str, str], str]) -> onnx.ModelProto:
    """An encoder whose positions a function makes of the mask and of the number of real tokens before each."""
    graph, ids, mask = begun()
    at = positions(graph, mask, graph.node("Sub", graph.node("CumSum", mask, 1), 1))
    words = graph.node("Gather", graph.weight(VOCABULARY, WIDTH, scale=1.0), ids)
    hidden = graph.normalized(graph.node("Add", words, graph.node("Gather", graph.weight(64, WIDTH, scale=1.0), at)))
    return of_tokens(graph, graph.layer(hidden, graph.adding(graph.mask(mask))))


def positions_below_zero() -> onnx.ModelProto:
    """-1 is the last row of the table."""
    return counted_by_the_mask(lambda graph, mask, before: before)


def positions_of_decoders() -> onnx.ModelProto:
    """1 at padding, as decoders in transformers have it."""
    return counted_by_the_mask(
        lambda graph, mask, before: str(graph.node("Where", graph.node("Equal", mask, 0), 1, before))
    )


def small_table_by_place() -> onnx.ModelProto:
    """All places from 15 on have its last row."""
    graph, ids, mask = begun()
    row = graph.node("Gather", graph.weight(16, WIDTH), graph.node("Min", graph.places(ids), 15))
    hidden = graph.node("Add", graph.embedded(ids), row)
    return of_tokens(graph, graph.layer(hidden, graph.adding(graph.mask(mask))))


def gate_of_uneven_parts() -> onnx.ModelProto:
    graph, ids, mask = begun(20)
    hidden = graph.layer(graph.embedded(ids), graph.adding(graph.mask(mask)))
    gate, up, rest = graph.node("Split", graph.dense(hidden, WIDTH, 32), outputs=3, axis=-1, num_outputs=3)
    gated = graph.node("Concat", graph.node("Mul", graph.node("Gelu", gate), up), rest, axis=-1)
    return of_tokens(graph, graph.dense(gated, 21, WIDTH))


def rows_joined_after_an_attention() -> onnx.ModelProto:
    graph, ids, mask = begun()
    hidden = graph.embedded(ids)
    tokens = graph.node("Reshape", hidden, [-1, WIDTH])
    joined = graph.layer(hidden, graph.adding(graph.mask(mask)), joined=(-1, WIDTH), skipped=tokens)
    graph.output(joined, "tokens", "T", WIDTH)
    return graph.model()


def rows_joined_before_an_attention() -> onnx.ModelProto:
    graph, ids, mask = begun()
    hidden = graph.embedded(ids)
    tokens = graph.node("Reshape", hidden, [-1, WIDTH])
    by_head = graph.node("Concat", graph.node("Shape", ids), [HEADS, WIDTH // HEADS], axis=0)
    return of_tokens(graph, graph.layer(tokens, graph.adding(graph.mask(mask)), by_head=by_head, skipped=hidden))


class Flattening(Graph):
    """Dense layers as GPT-2 has them: over the tokens of all rows, whose shape they restore."""

    def dense(self, value: str, inputs: int, outputs: int) -> str:
        rows = self.node("Slice", self.node("Shape", value), [0], [2], [0])
        result = super().dense(self.node("Reshape", value, [-1, inputs]), inputs, outputs)
        return str(self.node("Reshape", result, self.node("Concat", rows, [outputs], axis=0)))


def rows_joined_for_dense_layers() -> onnx.ModelProto:
    """What shape inference does not know is the width of the attention's output."""
    graph = Flattening()
    ids, mask = graph.input("input_ids", "B", "S"), graph.input("attention_mask", "B", "S")
    by_head, joined = (
        graph.node("Concat", graph.node("Shape", ids), sizes, axis=0) for sizes in ([-1, WIDTH // HEADS], [-1])
    )
    scores = graph.adding(graph.mask(mask))
    return of_tokens(graph, graph.layer(graph.embedded(ids), scores, by_head=by_head, joined=joined))


def heads_by_einsum() -> onnx.ModelProto:
    """As in Keras' MultiHeadAttention."""
    graph, ids, mask = begun()
    hidden, size = graph.embedded(ids), WIDTH // HEADS

    def projected(scale: float = 1.0) -> str:
        weight, bias = graph.weight(WIDTH, HEADS, size), graph.weight(HEADS, size, scale=0.1)
        product = graph.node("Einsum", hidden, weight, equation="abc,cde->abde")
        return str(graph.node("Mul", graph.node("Add", product, bias), scale))

    query, key, value = projected(size**-0.5), projected(), projected()
    scores = graph.node("Add", graph.node("Einsum", key, query, equation="aecd,abcd->acbe"), graph.mask(mask))
    heads = graph.node("Einsum", graph.node("Softmax", scores, axis=-1), value, equation="acbe,aecd->abcd")
    product = graph.node("Einsum", heads, graph.weight(HEADS, size, WIDTH, scale=0.3), equation="abcd,cde->abe")
    attended = graph.node("Add", product, graph.weight(WIDTH, scale=0.1))
    return of_tokens(graph, graph.normalized(graph.node("Add", hidden, attended)))


WRITTEN: dict[str, Callable[[], onnx.ModelProto]] = {
    "a rotation beside other ids": rotated,
    "buckets beside other ids": lambda: biased(bucketed, with_user),
    "slopes beside other ids": lambda: biased(slopes, with_user),
    "slopes by length": lambda: biased(slopes_by_length),
    "buckets scaled in short rows": lambda: biased(buckets_scaled_in_short_rows),
    "a bias for each key": lambda: biased(for_each_key),
    "a bias of two dimensions": lambda: biased(of_two_dimensions),
    "a small number for masked scores": small_number_for_masked_scores,
    "positions below zero": positions_below_zero,
    "positions of decoders": positions_of_decoders,
    "a small table by place": small_table_by_place,
    "a gate of uneven parts": gate_of_uneven_parts,
    "heads by einsum": heads_by_einsum,
    "rows joined after an attention": rows_joined_after_an_attention,
    "rows joined before an attention": rows_joined_before_an_attention,
    "rows joined for dense layers": rows_joined_for_dense_layers,
}


def feeds_for(model: onnx.ModelProto, rows: int = 4) -> dict[str, np.ndarray]:
    names = {value.name for value in model.graph.input}
    users = {"user_id": np.random.default_rng(1).integers(0, 1000, (rows, 1))} if "user_id" in names else {}
    return feeds_of(LENGTH, rows) | users


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
def test_results_are_those_of_the_untouched_model(name: str, backend: str, padding: str) -> None:
    model = WRITTEN[name]()
    try:
        check(model, feeds_for(model), backend, padding)
    except UnsupportedModel:
        assert padding == "remove"


def test_rows_joined_for_dense_layers_do_not_keep_the_unfused_attention() -> None:
    model = ir.serde.deserialize_model(rows_joined_for_dense_layers())
    pipeline.fuse(model)
    assert not {"Softmax", "Reshape"} & {node.op_type for node in model.graph}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT64])
def test_scores_are_filled_where_a_mask_marks_padding(backend: str, kind: int) -> None:
    graph = Graph()
    ids, mask = graph.input("input_ids", "B", "S"), graph.input("src_key_padding_mask", "B", "S", kind=kind)
    filled = graph.node("Unsqueeze", graph.node("Cast", mask, to=TensorProto.BOOL), [1, 2])
    fill = lambda scores: str(graph.node("Where", filled, -np.inf, scores))  # noqa: E731
    graph.output(graph.layer(graph.embedded(ids), fill), "hidden", "B", "S", WIDTH)
    padding = np.zeros((3, LENGTH), bool)
    padding[1, 4:] = padding[2, ::2] = True
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    ids_fed = np.random.default_rng(1).integers(0, VOCABULARY, padding.shape)
    feeds = {"input_ids": ids_fed, "src_key_padding_mask": padding.astype(dtype)}
    with isorun.Session(graph.model(), backend, padding="remove") as session:
        assert session.provenance.fused["SelfAttention"] == 1
        (result,) = session.run(None, feeds)
    (expected,) = exports.run(graph.model(), feeds)
    np.testing.assert_allclose(result[~padding], expected[~padding], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize(("factor", "fused"), [(0.125, 1), (2.0, 1), (0.3, 0)])
def test_scores_of_a_fully_masked_row_are_rounded_as_by_a_mask_that_is_added_before_the_scale(
    backend: str, factor: float, fused: int
) -> None:
    graph, ids, mask = begun()
    real = graph.node("Cast", graph.node("Unsqueeze", mask, [1, 2]), to=TensorProto.FLOAT)
    added = graph.node("Mul", graph.node("Sub", 1.0, real), -1e9)
    scale = lambda scores: str(graph.node("Mul", graph.node("Add", scores, added), factor))  # noqa: E731
    model = of_tokens(graph, graph.layer(graph.embedded(ids), scale, sharpness=100.0))
    feeds = feeds_for(model, 5)
    with isorun.Session(model, backend, padding="keep") as session:
        assert session.provenance.fused.get("SelfAttention", 0) == fused
        (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result[4], exports.run(model, feeds)[0][4], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("shorter", [1, 7])
def test_each_of_two_encoders_has_its_own_length(backend: str, shorter: int) -> None:
    graph = Graph()
    random, feeds = np.random.default_rng(1), {}
    for name, length, symbol in (("query", shorter, "Q"), ("document", LENGTH, "D")):
        ids, mask = graph.input(f"{name}_ids", "B", symbol), graph.input(f"{name}_mask", "B", symbol)
        added = graph.node("Add", bucketed(graph, ids), graph.mask(mask))
        hidden = graph.layer(graph.embedded(ids), graph.adding(added), rotary(graph, ids))
        graph.output(graph.node("Gather", hidden, 0, axis=1), name, "B", WIDTH)
        feeds |= {ids: random.integers(0, VOCABULARY, (2, length)), mask: np.ones((2, length), np.int64)}
    with isorun.Session(graph.model(), backend) as session:
        assert session.provenance.fused["SelfAttention"] == 2
        for result, expected in zip(session.run(None, feeds), exports.run(graph.model(), feeds), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", ["features", "input_ids"])
@pytest.mark.parametrize("shape", [(2, 4), (6, 3)])
def test_flat_hidden_states_have_the_rows_of_their_ids(first: str, shape: tuple[int, int]) -> None:
    graph = Graph()
    inputs = {
        "features": lambda: graph.input("features", "K", "F", kind=TensorProto.FLOAT),
        "input_ids": lambda: graph.input("input_ids", "B", "S"),
    }
    for name in sorted(inputs, key=lambda name: name != first):
        inputs[name]()
    hidden = graph.embedded("input_ids")
    sizes = graph.node("Shape", hidden)
    by_head = graph.node("Concat", graph.node("Slice", sizes, [0], [2]), [HEADS, WIDTH // HEADS], axis=0)
    flat = graph.layer(graph.node("Reshape", hidden, [-1, WIDTH]), by_head=by_head, joined=(-1, WIDTH))
    pooled = graph.node("ReduceMean", graph.node("Reshape", flat, sizes), axes=[1], keepdims=0)
    graph.output(graph.node("Add", pooled, graph.node("ReduceMean", "features")), "pooled", "B", WIDTH)
    feeds = {
        "input_ids": np.random.default_rng(1).integers(0, VOCABULARY, (2, 9)),
        "features": np.ones(shape, np.float32),
    }
    with isorun.Session(graph.model(), "ort-cpu") as session:
        (result,) = session.run(None, feeds)
    np.testing.assert_allclose(result, exports.run(graph.model(), feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_slice_beyond_short_rows_is_empty() -> None:
    graph, ids, mask = begun()
    hidden = graph.layer(graph.embedded(ids), graph.adding(graph.mask(mask)))
    graph.output(graph.node("Slice", hidden, [3], [4], [1]), "fourth", "B", "K", WIDTH)
    with isorun.Session(graph.model(), "ort-cpu") as session:
        for length, expected in ((2, 0), (6, 1)):
            feeds = {"input_ids": np.full((1, length), 7), "attention_mask": np.ones((1, length), np.int64)}
            assert session.run(None, feeds)[0].shape == (1, expected, WIDTH)


def test_a_mask_of_small_numbers_in_fp16_is_no_full_mask() -> None:
    graph, ids, mask = begun()
    before = graph.node("Unsqueeze", graph.node("LessOrEqual", graph.distances(ids), 0), [0, 1])
    real = graph.node("Cast", graph.node("Unsqueeze", mask, [1, 2]), to=TensorProto.BOOL)
    low = graph.node("Where", graph.node("And", before, real), 0.0, -3.0)
    model = of_tokens(graph, graph.layer(graph.embedded(ids), graph.adding(low)))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds = {"input_ids": np.arange(12)[None], "attention_mask": np.ones((1, 12), np.int64)}
    with isorun.Session(model, "ort-cpu") as session:
        np.testing.assert_allclose(session.run(None, feeds)[0], exports.run(model, feeds)[0], atol=2e-2)
