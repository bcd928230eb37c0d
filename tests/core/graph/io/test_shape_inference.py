"""ONNX's shape inference on a graph of onnx_ir."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from isorun.graph.io.shape_inference import infer_shapes

BRANCHES = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
graph (float[n, 4] x, bool choice) => (y) {
    wide = MatMul (x, w)
    twice = local.Twice (wide)
    y = If (choice) <
        then_branch = then () => (taken) { taken = Relu (twice) },
        else_branch = other () => (taken) { taken = Transpose (twice) }>
}
<domain: "local", opset_import: ["" : 18]> Twice (x) => (y) { y = Add (x, x) }
"""


def _model() -> ir.Model:
    proto = onnx.parser.parse_model(BRANCHES)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 300), np.float32), "w"))
    return ir.serde.deserialize_model(proto)


def test_shapes_through_functions_and_in_branches() -> None:
    model = _model()
    inputs = list(model.graph.inputs)
    infer_shapes(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert values["wide"].shape == values["twice"].shape == ["n", 300]
    assert values["twice"].dtype == ir.DataType.FLOAT
    choice = values["y"].producer()
    assert choice is not None
    shapes = {name: branch.as_graph().outputs[0].shape for name, branch in choice.attributes.items()}
    assert shapes == {"then_branch": ["n", 300], "else_branch": [300, "n"]}
    assert list(model.graph.inputs) == inputs
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    assert np.array_equal(weight.numpy(), np.ones((4, 300), np.float32))


def test_what_no_node_contradicts_is_inferred() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 5] x, int32[2] p) => (y, z) <float[4] weight = {1, 2, 3, 4}>
        { y = MatMul (x, weight)  z = Max (p, p) }""")
    model = ir.serde.deserialize_model(proto)
    infer_shapes(model)
    y, z = model.graph.outputs
    assert (y.shape, z.shape, z.dtype) == (None, [2], ir.DataType.INT32)


def test_shapes_that_a_file_declares_wrongly_are_inferred() -> None:
    """Of an initializer that was replaced, and of a value between nodes: runtimes ignore both."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 3] x) => (y) <float[1] factor = {2}>
        { scaled = Mul (x, factor)  y = ReduceMax <axes = [1], keepdims = 0> (scaled) }""")
    for name, shape in (("factor", ()), ("scaled", (7,))):
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    model = ir.serde.deserialize_model(proto)
    infer_shapes(model)
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs)}
    assert values["scaled"].shape == ["n", 3]
    assert values["scaled"].dtype == values["y"].dtype == ir.DataType.FLOAT
    assert values["factor"].shape == [1]


COMPUTED = """<ir_version: 9, opset_import: ["" : 17]>
g (int64[b, s] x, bool choice, int32[2] p) => (int64[{rows}, c] y, int32[{width}] z)
<int64[3] steps = {{0, 8, 16}}, int64[1] one = {{1}}> {{
    sizes = Shape (x)
    column = Unsqueeze (sizes, one)
    y = {operator} (column, steps)
    largest = Max (p, p)
    z = If (choice) <
        then_branch = then () => (int32[{taken}] twice) {{ twice = Add (largest, largest) }},
        else_branch = other () => (int32[2] negative) {{ negative = Neg (largest) }}>
}}"""


@pytest.mark.parametrize(
    ("operator", "rows", "width", "taken"),
    [
        ("Add", 2, 2, 2),  # ONNX computes the sum of a column and a row of sizes, and fails
        ("Max", 7, 2, 2),
        ("Max", 2, 7, 2),
        ("Max", 2, 2, 7),
    ],
)
def test_types_where_a_file_contradicts_what_is_computed(operator: str, rows: int, width: int, taken: int) -> None:
    """Runtimes run such models, so what they compute wrongly must be known there, too."""
    text = COMPUTED.format(operator=operator, rows=rows, width=width, taken=taken)
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    infer_shapes(model)
    values = {value.name: value for node in model.graph.all_nodes() for value in node.outputs}
    assert values["largest"].dtype == values["twice"].dtype == ir.DataType.INT32
    assert values["twice"].shape == [2]
