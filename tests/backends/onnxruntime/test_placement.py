"""Sessions in which a provider leaves nodes to another."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from isorun.errors import UnsupportedModel
from isorun_backends.onnxruntime.placement import (
    Node,
    count,
    integer_nodes,
    may_run_on_cpu,
    require,
    shape_nodes,
    with_inserted,
)

NODES = [Node("Mine", "n", "Neg"), Node("CPUExecutionProvider", "d", "Det")]
MODEL = Path("det.onnx")


def test_accepts_a_session_whose_nodes_are_all_the_providers():
    require("b", "Mine", NODES[:1], MODEL, allow_cpu_nodes=False)
    assert count(NODES) == {"Mine": {"Neg": 1}, "CPUExecutionProvider": {"Det": 1}}


def test_rejects_nodes_elsewhere_and_names_them():
    with pytest.raises(UnsupportedModel, match=r"Det \(1\).*allow_cpu_nodes") as caught:
        require("b", "Mine", NODES, MODEL, allow_cpu_nodes=False)
    assert caught.value.operators == ("Det",)
    require("b", "Mine", NODES, MODEL, allow_cpu_nodes=True)
    require("b", "Mine", NODES, MODEL, allow_cpu_nodes=False, also=("CPUExecutionProvider",))


@pytest.mark.parametrize("options", [{"allow_cpu_nodes": True}, {"allow_cpu_nodes": False}])
@pytest.mark.parametrize("also", [(), ("CPUExecutionProvider",)])
def test_rejects_a_provider_that_takes_no_node(options, also):
    with pytest.raises(UnsupportedModel, match="Other supports no node"):
        require("b", "Other", NODES, MODEL, also=also, **options)


def test_shape_computations_may_run_on_the_cpu_and_nothing_else():
    graph = onnx.parser.parse_graph(
        """
        g (int64[B,S] ids, float[9,8] table) => (float[B,S,8] out) <int64[1] one = {1}>
        {
          [shape] size = Shape (ids)
          [length] length = Slice (size, one, one)
          [words] words = Gather (table, ids)
          [spread] out = Expand (words, length)
        }
        """
    )
    shapes = shape_nodes(graph)
    assert shapes == {"shape", "length"}
    nodes = [Node("CPUExecutionProvider", name, kind) for name, kind in (("shape", "Shape"), ("length", "Slice"))]
    nodes.append(Node("Mine", "spread", "Expand"))
    require("b", "Mine", nodes, MODEL, allow_cpu_nodes=False, shapes=shapes)
    nodes.append(Node("CPUExecutionProvider", "words", "Gather"))
    with pytest.raises(UnsupportedModel, match=r"Gather \(1\)"):
        require("b", "Mine", nodes, MODEL, allow_cpu_nodes=False, shapes=shapes)


def test_a_gather_that_the_runtime_inserted_computes_with_shapes():
    nodes = [Node("CPUExecutionProvider", name, "Gather") for name in ("words", "Gather_token_1")]
    assert with_inserted(frozenset({"shape"}), {"shape", "words"}, nodes) == {"shape", "Gather_token_1"}
    others = [Node("CPUExecutionProvider", "MatMul_token_1", "MatMul")]
    assert with_inserted(frozenset({"shape"}), {"shape", "words"}, others) == {"shape"}


def test_only_the_type_of_the_second_input_of_castlike_counts():
    """As in ONNX's own definition of Attention: the head size, in the type of the query."""
    graph = onnx.parser.parse_graph(
        """
        g (float[B,S] query) => (float[B,S] out)
        {
          [shape] size = Shape <start = 1> (query)
          [cast] like = CastLike (size, query)
          [root] scale = Sqrt (like)
          [other] data = CastLike (query, size)
          [scaled] out = Div (query, scale)
        }
        """
    )
    assert shape_nodes(graph) == {"shape", "cast", "root"}


MASKED = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[B,S] mask, float[B,S] x, int32[S,S] table) => (float[B,S] out, int32[B,S] product, int64[1,N] kept)
<int64 axis = {1}>
{
  [sums] sums = CumSum (mask, axis)
  [attends] attends = Cast <to = 9> (mask)
  [short] short = Cast <to = 6> (sums)
  [kept] kept = NonZero (attends)
  [factors] factors = Cast <to = 1> (attends)
  [product] product = MatMul (short, table)
  [scaled] out = Mul (x, factors)
}"""


def test_index_computations_are_those_on_integers_alone(tmp_path):
    model = onnx.parser.parse_model(MASKED)
    assert integer_nodes(model) == {"sums", "attends", "short", "kept"}
    onnx.save(model, tmp_path / "model.onnx")
    path, nodes = tmp_path / "model.onnx", [Node("Mine", node.name, node.op_type) for node in model.graph.node]
    assert may_run_on_cpu(path, "integers", nodes) == integer_nodes(model)
    assert may_run_on_cpu(path, "shapes", nodes) == frozenset()
    assert may_run_on_cpu(path, "none", nodes) is None


def test_a_renamed_node_counts_as_the_one_that_is_missing(tmp_path):
    model = onnx.parser.parse_model(MASKED)
    onnx.save(model, tmp_path / "model.onnx")
    nodes = [Node("Mine", node.name, node.op_type) for node in model.graph.node]
    for missing, may in (("sums", True), ("scaled", False)):
        operator = next(node.op_type for node in model.graph.node if node.name == missing)
        renamed = [*(node for node in nodes if node.name != missing), Node("CPUExecutionProvider", "new", operator)]
        allowed = may_run_on_cpu(tmp_path / "model.onnx", "integers", renamed)
        assert allowed is not None
        assert ("new" in allowed) == may


def test_no_more_new_nodes_may_run_on_the_cpu_than_are_missing(tmp_path):
    """Two others of the operator are missing as well: they cancelled out."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[B,S] ids, float[B,S] x) => (int64[S,B] rows, float[B,S] out)
        {
          [rows] rows = Transpose (ids)
          [there] turned = Transpose (x)
          [back] out = Transpose (turned)
        }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    single = [Node("CPUExecutionProvider", "new", "Transpose")]
    assert "new" in (may_run_on_cpu(tmp_path / "model.onnx", "integers", single) or ())
    two = [*single, Node("CPUExecutionProvider", "another", "Transpose")]
    assert {"new", "another"}.isdisjoint(may_run_on_cpu(tmp_path / "model.onnx", "integers", two) or ())
