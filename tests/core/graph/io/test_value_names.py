"""Names of values in graphs within graphs."""

import numpy as np
import onnx_ir as ir
import pytest

import isorun
from isorun.graph.io import shared
from onnx_text import graph

# Two branches and the graph around them, each with an operator that backends rewrite into several.
MODEL = """g (float[a, b, 2] x, bool c) => (float[d, e, f, 2] y)
    <float[1, 6, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}> {
    first = GRU <hidden_size = 2> (x, w, w)
    rest = If (c) <
        then_branch = t () => (float[g, h, i, 2] o) { o = GRU <hidden_size = 2> (x, w, w) },
        else_branch = u () => (float[j, k, l, 2] q) { p = GRU <hidden_size = 2> (x, w, w) q = Neg (p) }>
    y = Add (first, rest)
}"""


def test_names_are_unique_in_the_model() -> None:
    model = ir.from_proto(graph(MODEL))
    for inner in model.graphs():
        for number, node in enumerate(inner):
            if not node.outputs[0].is_graph_output():
                node.outputs[0].name = f"val_{number}"
    shared.distinguish_names(model)
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(set(names)) == len(names)
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("condition", [True, False])
def test_workarounds_inside_and_around_branches(backend: str, condition: bool) -> None:
    feeds = {"x": np.ones((3, 1, 2), np.float32), "c": np.array(condition)}
    model = graph(MODEL)
    with isorun.Session(model, backend) as session, isorun.Session(model, "reference") as oracle:
        np.testing.assert_allclose(session.run(None, feeds), oracle.run(None, feeds), atol=1e-6)
