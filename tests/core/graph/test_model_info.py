import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import exports
import tiny
from isorun.graph import model_info, pipeline
from isorun.graph.io import files


def described(text: str):
    return model_info.describe(ir.serde.deserialize_model(onnx.parser.parse_model(text)))


HEAD = '<ir_version: 10, opset_import: ["" : 17]>'


def test_a_bert(bert):
    info = model_info.describe(files.read(bert))
    assert [(v.name, v.type, v.shape) for v in info.inputs] == [
        (name, "tensor(int64)", ("batch", "sequence")) for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    assert [v.bounds for v in info.inputs] == [(0, tiny.VOCABULARY - 1), (0, 1), (0, 1)]
    assert info.mask == "attention_mask"
    assert info.limits == {"batch": None, "sequence": tiny.POSITIONS}
    assert (info.opset, *info.metadata[:2]) == (17, "isorun", "encoder")
    assert info.fused["SelfAttention"] == 2


@pytest.mark.parametrize(
    ("onnx_type", "name", "shape"),
    [
        ("float[2,N]", "tensor(float)", (2, "N")),
        ("double", "tensor(double)", ()),
        ("bfloat16[?]", "tensor(bfloat16)", (None,)),
        ("float[-1,3]", "tensor(float)", (None, 3)),
        ("float8e4m3fn[1]", "tensor(float8e4m3fn)", (1,)),
        ("int4[1]", "tensor(int4)", (1,)),
        ("string[3]", "tensor(string)", (3,)),
        ("bool[]", "tensor(bool)", None),
        ("seq(float[2])", "seq(tensor(float))", None),
        ("optional(float[2])", "optional(tensor(float))", (2,)),
        ("optional(seq(int64[1]))", "optional(seq(tensor(int64)))", None),
    ],
)
def test_types_by_onnx_runtimes_names(onnx_type, name, shape):
    (value,) = described(f"{HEAD} g ({onnx_type} x) => ({onnx_type} y) {{ y = Identity (x) }}").inputs
    assert (value.type, value.shape) == (name, shape)


@pytest.mark.parametrize(
    ("nodes", "bounds"),
    [
        ("y = Gather (t, i)", (-3, 2)),
        ("y = Gather <axis = 1> (t, i)", (-2, 1)),
        ("j = Identity (i)  k = Cast <to = 7> (j)  y = Gather (t, k)", (-3, 2)),
        ("a = Gather (t, i)  b = Gather <axis = 1> (t, i)  c = Transpose (b)  y = Concat <axis = 0> (a, b)", (-2, 1)),
        ("j = Add (i, i)  y = Gather (t, j)", (-1, 1)),
        ("c = Cast <to = 1> (i)  y = Add (c, t)", None),
    ],
)
def test_bounds_of_indices(nodes, bounds):
    text = f"{HEAD} g (int64[N] i) => (float[?,?] y) <float[3,2] t = {{1,2,3,4,5,6}}> {{ {nodes} }}"
    assert described(text).inputs[0].bounds == bounds


@pytest.mark.parametrize(("columns", "bounds"), [("0 1", (-3, 2)), ("0 -1", (-3, 2)), ("0 0", None)])
def test_bounds_of_the_columns_of_boxes(columns, bounds):
    """The widest, if all of them are indices."""
    first, second = columns.split()
    text = f"""{HEAD} g (int64[N,2] boxes) => (float[?,?] y)
        <float[3,2] t = {{1,2,3,4,5,6}}, float[2,2] u = {{1,2,3,4}}, int64 i = {{{first}}}, int64 j = {{{second}}}>
        {{ a = Gather <axis = 1> (boxes, i)  b = Gather <axis = 1> (boxes, j)
           c = Gather (t, a)  d = Gather (u, b)  y = Add (c, d) }}"""
    assert described(text).inputs[0].bounds == bounds


def test_initializers_before_ir_version_4_are_constants():
    """All of them had to be inputs."""
    text = "g (float[N] x, float[2] w) => (float[N] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"
    assert [v.name for v in described(HEAD.replace("10", "3") + text).inputs] == ["x"]
    assert [v.name for v in described(HEAD.replace("10", "4") + text).inputs] == ["x", "w"]


def test_reports_overridable_inputs():
    info = described(f"{HEAD} g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {{3}}> {{ y = Add (x, w) }}")
    assert [(v.name, v.overridable) for v in info.inputs] == [("x", False), ("w", True)]


@pytest.mark.parametrize(
    ("nodes", "quantized"),
    [
        ("y = QuantizeLinear (x, s)", True),
        ("y, a, b = DynamicQuantizeLinear (x)", True),
        ("y = DequantizeLinear (w, s)", False),
        ("y = Identity (x)", False),
    ],
)
def test_reports_quantized_models(nodes, quantized):
    text = f"{HEAD} g (float[N] x) => (float[N] y) <float s = {{2}}, int8[2] w = {{1, 2}}> {{ {nodes} }}"
    assert described(text).quantized is quantized


def test_inputs_that_no_node_reads():
    info = described(HEAD + "g (float[N] a, float[N] b, float[N] c) => (float[N] b, float[N] y) { y = Neg(c) }")
    assert info.unread == ("a",)


def test_limit_where_padding_takes_the_last_position() -> None:
    """Positions counted from 0, and -1 for padding, which ONNX counts from the end of the table."""
    model = exports.model("roberta-qa-dynamo18-eager")
    counted = next(node for node in model.graph if node.name == "node_add_22")
    counted.op_type = "Sub"
    table = next(value for value in model.graph.initializers.values() if "position_embeddings" in str(value.name))
    pipeline.fuse(model)
    assert table.shape is not None
    assert table.shape[0] in model_info.describe(model).limits.values()


@pytest.mark.parametrize(
    "lookup",
    ["Gather (table, at)", "com.microsoft.GatherBlockQuantized <block_size = 16, quantize_axis = 1> (q, at, s)"],
)
def test_limit_of_an_encoder_that_is_not_fused(lookup: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) => (float[batch, sequence, 16] y)
        <float[9, 16] table, int4[9, 16] q, float[9, 1] s, int64 zero = {{0}}, int64 one = {{1}}, int64[1] axes = {{2}}>
        {{
            sizes = Shape (input_ids) length = Gather (sizes, one) at = Range (zero, length, one) places = {lookup}
            masked = Mul (input_ids, attention_mask) words = Cast <to = 1> (masked) wide = Unsqueeze (words, axes)
            y = Add (places, wide) }}"""
    graph = onnx.parser.parse_model(text)
    arrays = {"table": np.ones((9, 16), np.float32), "s": np.ones((9, 1), np.float32)}
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    graph.graph.initializer.append(onnx.helper.make_tensor("q", onnx.TensorProto.INT4, (9, 16), [1] * 144))
    assert model_info.describe(ir.serde.deserialize_model(graph)).limits == {"sequence": 9}
