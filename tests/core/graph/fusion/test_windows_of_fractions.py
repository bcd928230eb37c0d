"""Masks and biases that change at fractions, roots or quotients of places, in rows beyond those."""

from collections.abc import Callable

import pytest
from onnx import TensorProto

from written_encoders import LOWEST, WIDTH, Graph, begun, check, feeds_of

LENGTH = 45
Near = Callable[[Graph, str], str]
WINDOWS: dict[str, Near] = {
    "a half": lambda graph, far: graph.node("Less", far, 30.5),
    "a quotient": lambda graph, far: graph.node("Less", graph.node("Div", far, 10.0), 3.05),
    "a root": lambda graph, far: graph.node("LessOrEqual", graph.node("Sqrt", far), 5.5),
    "a logarithm": lambda graph, far: graph.node("Greater", 3.45, graph.node("Log", graph.node("Add", far, 1.0))),
    "a power": lambda graph, far: graph.node("Less", graph.node("Pow", far, 3.0), 27000.5),
    "a sign": lambda graph, far: graph.node(
        "Not", graph.node("Cast", graph.node("Relu", graph.node("Sub", far, 30.5)), to=9)
    ),
    "a step": lambda graph, far: graph.node("Equal", graph.node("Floor", graph.node("Div", far, 31.0)), 0.0),
}


def masked(graph: Graph, ids: str, kept: str) -> None:
    fill = lambda scores: str(graph.node("Where", kept, scores, LOWEST))  # noqa: E731
    graph.output(graph.layer(graph.embedded(ids), fill), "hidden", "B", "S", WIDTH)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows(window: str, backend: str) -> None:
    graph, ids, mask = begun()
    far = graph.node("Cast", graph.node("Abs", graph.distances(ids)), to=TensorProto.FLOAT)
    near = graph.node("Unsqueeze", WINDOWS[window](graph, far), [0, 1])
    real = graph.node("Cast", graph.node("Unsqueeze", mask, [1, 2]), to=TensorProto.BOOL)
    masked(graph, ids, graph.node("And", near, real))
    session = check(graph.model(), feeds_of(LENGTH), backend, "keep", optimized=False, fused=1)
    assert session.model_info.window == 30


@pytest.mark.parametrize("limit", [30.5, 31.0])
@pytest.mark.parametrize("operator", ["Less", "Sqrt"])
def test_masks_of_short_rows_alone(operator: str, limit: float) -> None:
    graph, ids, mask = begun()
    length = graph.node("Cast", graph.length(ids), to=TensorProto.FLOAT)
    if operator == "Sqrt":
        length, limit = graph.node("Sqrt", length), limit**0.5
    real = graph.node("Cast", graph.node("Unsqueeze", mask, [1, 2]), to=TensorProto.BOOL)
    masked(graph, ids, graph.node("Or", real, graph.node("Not", graph.node("Less", length, limit))))
    check(graph.model(), feeds_of(LENGTH), "ort-cpu", "keep", optimized=False)


@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_a_bias_that_begins_far_away(padding: str) -> None:
    graph, ids, mask = begun()
    far = graph.node("Cast", graph.node("Abs", graph.distances(ids)), to=TensorProto.FLOAT)
    beyond = graph.node("Relu", graph.node("Sub", graph.node("Div", far, 10.0), 2.55))
    bias = graph.node("Unsqueeze", graph.node("Mul", beyond, -4.0), [0, 1])
    added = graph.node("Add", bias, graph.mask(mask))
    graph.output(graph.layer(graph.embedded(ids), graph.adding(added)), "hidden", "B", "S", WIDTH)
    check(graph.model(), feeds_of(LENGTH), "ort-cpu", padding, optimized=False)
