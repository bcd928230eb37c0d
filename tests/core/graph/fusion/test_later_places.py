"""What encoders of people's own do beyond the samples that they are tried on: in rows of 100 tokens, to rare ids."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

import isorun
from isorun.errors import UnsupportedModel
from written_encoders import LOWEST, VOCABULARY, WIDTH, Graph, begun, check, feeds_of

LENGTH = 100


def floats(graph: Graph, value: str) -> str:
    return str(graph.node("Cast", value, to=TensorProto.FLOAT))


def rows(graph: Graph, table: str) -> str:
    return str(graph.node("Slice", table, [0], graph.node("Unsqueeze", graph.length("input_ids"), [0]), [1]))


def faded_rows(graph: Graph) -> str:
    """``table[p] * min(1, 50 / (p + 1))``"""
    place = graph.node("Add", floats(graph, graph.places("input_ids")), 1.0)
    factor = graph.node("Unsqueeze", graph.node("Min", 1.0, graph.node("Div", 50.0, place)), [0, 2])
    return str(graph.node("Mul", rows(graph, graph.weight(1, 256, WIDTH)), factor))


def rows_of_short_texts(graph: Graph) -> str:
    near = graph.node("Unsqueeze", graph.node("Less", graph.places("input_ids"), 50), [0, 2])
    return str(graph.node("Where", near, rows(graph, graph.weight(1, 256, WIDTH)), 0.0))


def rows_by_length(graph: Graph) -> str:
    factor = graph.node("Min", 1.0, graph.node("Div", 64.0, floats(graph, graph.length("input_ids"))))
    return str(graph.node("Mul", rows(graph, graph.weight(1, 256, WIDTH)), factor))


def repeated_rows(graph: Graph) -> str:
    """As Longformer's table is made longer."""
    times = graph.node("Unsqueeze", graph.node("Add", graph.node("Div", graph.length("input_ids"), 64), 1), [0])
    repeats = graph.node("Concat", [1], times, [1], axis=0)
    return rows(graph, graph.node("Tile", graph.weight(1, 64, WIDTH), repeats))


def counted(graph: Graph, real: str) -> str:
    """Rows of a table by RoBERTa's count of real tokens."""
    places = graph.node("Add", graph.node("Mul", graph.node("CumSum", real, 1), real), 1)
    return str(graph.node("Gather", graph.weight(128, WIDTH), places))


def counted_without_a_list(graph: Graph) -> str:
    """As ``torch.isin`` writes it."""
    equal = graph.node("Equal", graph.node("Unsqueeze", "input_ids", [2]), [1, 50])
    special = graph.node("ReduceMax", graph.node("Cast", equal, to=TensorProto.INT64), axes=[2], keepdims=0)
    return counted(graph, graph.node("Sub", 1, special))


def counted_by_a_table(graph: Graph) -> str:
    by_id = np.ones(VOCABULARY, np.int64)
    by_id[[1, 50]] = 0
    return counted(graph, graph.node("Gather", by_id, "input_ids"))


POSITIONS = [
    *(faded_rows, rows_of_short_texts, rows_by_length, repeated_rows),
    *(counted_without_a_list, counted_by_a_table),
]


def cut(graph: Graph, near: np.ndarray) -> str:
    """The first rows and columns of a mask, (1, 1, S, S)."""
    length = graph.node("Unsqueeze", graph.length("input_ids"), [0])
    return str(graph.node("Slice", near[None, None], [0, 0], graph.node("Concat", length, length, axis=0), [2, 3]))


def window_of_a_table(graph: Graph) -> str:
    """40 tokens to each side; the first and the last token are global, as BigBird's."""
    place = np.arange(512)
    near = np.abs(place[:, None] - place) <= 40
    near[[0, -1]], near[:, [0, -1]] = True, True
    return cut(graph, near)


def window_of_blocks(graph: Graph) -> str:
    block = np.arange(512) // 16
    ends = np.isin(block, [0, block[-1]])
    return cut(graph, (np.abs(block[:, None] - block) <= 1) | ends[:, None] | ends)


def window_with_a_global_token_in_between(graph: Graph) -> str:
    place = np.arange(512)
    near = np.abs(place[:, None] - place) <= 10
    near[[0, 45, -1]], near[:, [0, 45, -1]] = True, True
    return cut(graph, near)


def computed_window(graph: Graph) -> str:
    places = graph.places("input_ids")
    last = graph.node("Sub", graph.length("input_ids"), 1)
    distance = graph.node("Sqrt", floats(graph, graph.node("Abs", graph.distances("input_ids"))))
    end = graph.node("Or", graph.node("Equal", places, 0), graph.node("Equal", places, last))
    near = graph.node("Or", graph.node("LessOrEqual", distance, 40**0.5), graph.node("Unsqueeze", end, [0]))
    return str(graph.node("Unsqueeze", graph.node("Or", near, graph.node("Unsqueeze", end, [1])), [0, 1]))


WINDOWS = [window_of_a_table, window_of_blocks, window_with_a_global_token_in_between, computed_window]


def compare(graph: Graph, hidden: str, backend: str = "ort-cpu", padding: str = "auto", length: int = LENGTH) -> None:
    """With the untouched model."""
    graph.output(hidden, "hidden", "B", "S", WIDTH)
    check(graph.model(), feeds_of(length, 4), backend, padding)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("positions", POSITIONS, ids=lambda positions: positions.__name__)
def test_position_embeddings(positions: Callable[[Graph], str], backend: str) -> None:
    graph, _, mask = begun()
    words = graph.node("Gather", graph.weight(VOCABULARY, WIDTH, scale=1.0), "input_ids")
    hidden = graph.normalized(graph.node("Add", words, positions(graph)))
    compare(graph, graph.layer(hidden, graph.adding(graph.mask(mask))), backend)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.__name__)
def test_windows_with_global_tokens(window: Callable[[Graph], str], backend: str) -> None:
    graph, _, mask = begun()
    real = graph.node("Cast", graph.node("Unsqueeze", mask, [1, 2]), to=TensorProto.BOOL)
    allowed = graph.node("And", window(graph), real)
    hidden = graph.embedded("input_ids")
    compare(graph, graph.layer(hidden, lambda scores: str(graph.node("Where", allowed, scores, LOWEST))), backend)


@pytest.mark.parametrize("padding", ["keep", "auto"])
def test_a_mask_that_is_scaled_with_the_scores(padding: str) -> None:
    """It lowers them by 100, which trained scores may exceed."""
    graph, _, mask = begun()
    real = floats(graph, graph.node("Unsqueeze", mask, [1, 2]))
    added = graph.node("Mul", graph.node("Sub", 1.0, real), -10000.0)

    def scaled(scores: str) -> str:
        return str(graph.node("Mul", graph.node("Add", scores, added), 0.01))

    hidden = graph.embedded("input_ids")
    for _ in range(2):
        hidden = graph.layer(hidden, scaled, sharpness=4000.0)
    compare(graph, hidden, padding=padding, length=20)
    with pytest.raises(UnsupportedModel):
        isorun.Session(graph.model(), "ort-cpu", padding="remove")


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_a_dense_layer_that_heads_share(backend: str) -> None:
    graph, ids, mask = begun()
    hidden = graph.layer(graph.embedded(ids), graph.adding(graph.mask(mask)))
    by_head = graph.node("MatMul", graph.node("Reshape", hidden, [-1, 8]), graph.weight(8, 8))
    shape = graph.node("Shape", hidden)
    compare(graph, graph.node("Reshape", by_head, shape), backend, length=12)
