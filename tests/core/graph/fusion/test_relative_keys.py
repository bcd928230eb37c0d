"""BERT's relative positions: queries, and keys, multiplied with a table's row for the distance of each pair."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import isorun
from isorun.errors import InvalidFeeds
from written_encoders import HEADS, WIDTH, Graph, begun, check, feeds_of

LONGEST = 12
KEY_ROWS, QUERY_ROWS = "bhld,lrd->bhlr", "bhrd,lrd->bhlr"

Rows = Callable[[Graph, str], str]


def by_distance(graph: Graph, ids: str) -> str:
    """The row of each distance up to that of the longest rows, (S, S)."""
    return str(graph.node("Add", graph.node("Neg", graph.distances(ids)), LONGEST - 1))


def clipped(graph: Graph, ids: str) -> str:
    """Alike from a distance of 3 on, and counted from the key (Shaw et al., 2018)."""
    return str(graph.node("Add", graph.node("Clip", graph.distances(ids), -3, 3), 3))


def by_places(graph: Graph, ids: str) -> str:
    """No row for each distance."""
    places = graph.places(ids)
    return str(graph.node("Mod", graph.node("Mul", places, graph.node("Unsqueeze", places, [1])), 7))


def looked_up(rows: Rows, table_rows: int) -> Rows:
    """A row of a table for each pair, (S, S, d)."""
    return lambda graph, ids: str(
        graph.node("Gather", graph.weight(table_rows, WIDTH // HEADS, scale=1.0), rows(graph, ids))
    )


def computed(graph: Graph, ids: str) -> str:
    """Cosines of distances, without a table."""
    distances = graph.node("Cast", graph.node("Unsqueeze", graph.distances(ids), [2]), to=TensorProto.FLOAT)
    return str(graph.node("Cos", graph.node("Mul", distances, np.linspace(0.1, 1, WIDTH // HEADS, dtype=np.float32))))


def encoder(by_pair: Rows, *equations: str, factor: float = (WIDTH // HEADS) ** -0.5) -> onnx.ModelProto:
    graph, ids, mask = begun()
    heads: list[str] = []

    def noted(value: str) -> str:
        heads.append(value)
        return value

    def with_terms(scores: str) -> str:
        row = by_pair(graph, ids)
        for equation in equations:
            content = heads[equation == QUERY_ROWS]
            term = graph.node("Einsum", content, row, equation=equation)
            scores = str(graph.node("Add", scores, graph.node("Mul", term, factor)))
        return str(graph.node("Add", scores, graph.mask(mask)))

    graph.output(graph.layer(graph.embedded(ids), with_terms, noted), "hidden", "B", "S", WIDTH)
    return graph.model()


BY_DISTANCE, CLIPPED = looked_up(by_distance, 2 * LONGEST - 1), looked_up(clipped, 7)
MODELS = {
    "queries": (lambda: encoder(BY_DISTANCE, KEY_ROWS), 1),
    "keys": (lambda: encoder(BY_DISTANCE, QUERY_ROWS), 1),
    "both": (lambda: encoder(BY_DISTANCE, KEY_ROWS, QUERY_ROWS), 1),
    "another factor": (lambda: encoder(BY_DISTANCE, KEY_ROWS, QUERY_ROWS, factor=0.7), 1),
    "clipped": (lambda: encoder(CLIPPED, KEY_ROWS, QUERY_ROWS), 1),
    "no distance": (lambda: encoder(looked_up(by_places, 7), KEY_ROWS), 0),
    "no table": (lambda: encoder(computed, KEY_ROWS), 0),
    "a table too large to be read for each pair": (lambda: encoder(looked_up(by_distance, 40000), KEY_ROWS), 0),
    "queries twice": (lambda: encoder(BY_DISTANCE, KEY_ROWS, KEY_ROWS), 1),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_results_are_those_of_the_untouched_model(name: str, backend: str) -> None:
    make, fused = MODELS[name]
    for length in (2, 5, LONGEST):
        check(make(), feeds_of(length), backend, fused=fused)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_rows_longer_than_the_table_are_refused(backend: str, padding: str) -> None:
    model = encoder(BY_DISTANCE, KEY_ROWS)
    for name in ("input_ids", "attention_mask"):  # a length without a name has no limit of its own
        (value,) = (value for value in model.graph.input if value.name == name)
        value.type.tensor_type.shape.dim[1].ClearField("dim_param")
    with isorun.Session(model, backend, padding=padding) as session, pytest.raises(InvalidFeeds):
        session.run(None, feeds_of(LONGEST + 1))


def test_longer_rows_than_clipped_distances_run() -> None:
    check(encoder(CLIPPED, KEY_ROWS), feeds_of(40))
