"""Which graphs compute the rows of a batch independently."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import exports
import small_bert
from isorun.graph.analysis import batch_independence
from isorun.graph.io import files
from isorun.graph.pipeline import Target, fuse, transform

INDEPENDENT = {
    "a softmax over the last axis": "y = Softmax <axis = -1> (x)",
    "attention": "t = Transpose <perm = [0, 2, 1]> (x)  s = MatMul (x, t)  p = Softmax (s)  y = MatMul (p, x)",
    "a mean over tokens": "y = ReduceMean <axes = [1]> (x)",
    "rows merged with tokens, and separated": (
        "flat = Constant <value_ints = [-1, 4]> ()  m = Reshape (x, flat)  n = ReduceSum <keepdims = 1> (m, last)"
        "  p = Mul (m, n)  shape = Shape (x)  y = Reshape (p, shape)"
    ),
    "sequence first, and back": (
        "t = Transpose <perm = [1, 0, 2]> (x)  u = Softmax <axis = 0> (t)  y = Transpose <perm = [1, 0, 2]> (u)"
    ),
    "positions counted by a cumulative sum": "y = CumSum (x, one)",
    "a shape computed by operators that shape inference does not evaluate": (
        "shape = Shape (x)  minus = Constant <value_ints = [-1, -1, -1]> ()  same = Equal (shape, minus)"
        "  d = Where (same, minus, shape)  e = Expand (one_f, d)  z = Add (x, e)  y = ReduceMax <axes = [-2]> (z)"
    ),
    "the first of each row's tokens": "y = Gather <axis = 1> (x, one)",
    "a static quantization": "q = QuantizeLinear (x, one_f)  y = DequantizeLinear (q, one_f)",
    "a choice that the shape decides": (
        "n = Size (x)  c = Greater (n, one_s)"
        "  y = If (c) <then_branch = a () => (float[B, S, 4] u) { u = Relu (x) },"
        "  else_branch = b () => (float[B, S, 4] v) { v = Neg (x) }>"
    ),
    "a scalar of the type of rows": "c = CastLike (one_s, x)  y = Add (x, c)",
    "an average of images": "i = Unsqueeze (x, one)  y = GlobalAveragePool (i)",
    "rows behind the tokens that they are merged with": (
        "t = Transpose <perm = [1, 0, 2]> (x)  flat = Constant <value_ints = [-1, 4]> ()  m = Reshape (t, flat)"
        "  n = Neg (m)  shape = Shape (t)  u = Reshape (n, shape)  y = Transpose <perm = [1, 0, 2]> (u)"
    ),
    "positions looked up by rows": "i = ArgMax <axis = 2, keepdims = 0> (x)  y = Gather <axis = 0> (four, i)",
    "a row padded at its end": "p = Constant <value_ints = [0, 0, 0, 0, 1, 0]> ()  y = Pad (x, p)",
    "einsum by rows": 'y = Einsum <equation = "bsh,bth->bst"> (x, x)',
}
_BATCH = "shape = Shape (x)  z = Constant <value_int = 0> ()  b = Gather (shape, z)"
_ROWS = f"{_BATCH}  by = Constant <value_int = 1> ()  rows = Range (z, b, by)"
MIXING = {
    "a division by the size of the batch": (f"{_BATCH}  f = Cast <to = 1> (b)  y = Div (x, f)", "Div"),
    "a product with the number of elements": ("n = Size (x)  f = Cast <to = 1> (n)  y = Mul (x, f)", "Mul"),
    "the number of the row": (
        f"{_ROWS}  f = Cast <to = 1> (rows)  axes = Constant <value_ints = [1, 2]> ()"
        "  u = Unsqueeze (f, axes)  y = Add (x, u)",
        "Add",
    ),
    "another row, by GatherND": (
        f"{_ROWS}  none = Mul (rows, z)  i = Unsqueeze (none, last)  y = GatherND (x, i)",
        "GatherND",
    ),
    "other rows, by GatherElements": ("s = Shape (x)  i = ConstantOfShape (s)  y = GatherElements (x, i)", "GatherE"),
    "a row replaced": (
        "i = Constant <value_ints = [0]> ()  at = Unsqueeze (i, one)  s = Shape <start = 1> (x)"
        "  o = Expand (one_f, s)  u = Unsqueeze (o, zero)  y = ScatterND (x, at, u)",
        "ScatterND",
    ),
    "a triangle of rows": ("s = ReduceSum <keepdims = 0> (x, one)  y = Trilu (s)", "Trilu"),
    "rows that were merged before tokens, and separated behind them": (
        f"{_BATCH}  one_t = Constant <value_int = 1> ()  t = Gather (shape, one_t)"
        "  four_i = Constant <value_ints = [4]> ()  flat = Constant <value_ints = [-1, 4]> ()  m = Reshape (x, flat)"
        "  b1 = Unsqueeze (b, zero)  t1 = Unsqueeze (t, zero)  d = Concat <axis = 0> (t1, b1, four_i)"
        "  u = Reshape (m, d)  y = Transpose <perm = [1, 0, 2]> (u)",
        "Reshape",
    ),
    "halves of the batch": (
        "s = ReduceSum <keepdims = 0> (x, one)  two = Constant <value_ints = [2, -1]> ()  h = Reshape (s, two)"
        "  y = Transpose (h)",
        "Reshape",
    ),
    "columns times rows": (
        "s = ReduceSum <keepdims = 0> (x, both)  c = ReduceSum <keepdims = 0> (x, one)  y = Mul (c, s)",
        "Mul",
    ),
    "a row chosen by data": ("s = ReduceSum <keepdims = 0> (x, both)  i = Cast <to = 7> (s)  y = Gather (x, i)", "Gat"),
    "repeated rows": ("twice = Constant <value_ints = [2, 1, 1]> ()  y = Tile (x, twice)", "Tile"),
    "enlarged rows": (
        'f = Constant <value_floats = [2.0, 1.0, 1.0]> ()  y = Resize <mode = "nearest"> (x, , f)',
        "Resize",
    ),
    "rows shifted by one": ("p = Constant <value_ints = [1, 0, 0, -1, 0, 0]> ()  y = Pad (x, p)", "Pad"),
    "a spectrum of rows": ("u = Unsqueeze (x, last)  y = DFT <axis = 0> (u)", "DFT"),
    "the number of the row as an integer": (
        f"{_ROWS}  axes = Constant <value_ints = [1, 2]> ()  u = Unsqueeze (rows, axes)  i = Cast <to = 7> (x)"
        "  y = Add (i, u)",
        "Add",
    ),
    "rows taken for tokens": (
        f"{_BATCH}  one_t = Constant <value_int = 1> ()  t = Gather (shape, one_t)"
        "  four_i = Constant <value_ints = [4]> ()"
        "  b1 = Unsqueeze (b, zero)  t1 = Unsqueeze (t, zero)  d = Concat <axis = 0> (t1, b1, four_i)"
        "  y = Reshape (x, d)",
        "Reshape",
    ),
    "dynamic quantization": ("q, s, z = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, s, z)", "DynamicQuantize"),
    "a reduction of all axes": ("y = ReduceMax <keepdims = 1> (x)", "ReduceMax"),
    "a mean over the batch": ("m = ReduceMean <axes = [0]> (x)  y = Sub (x, m)", "ReduceMean"),
    "a mean over the batch, negative axis": ("m = ReduceMean <axes = [-3]> (x)  y = Sub (x, m)", "ReduceMean"),
    "a mean over the batch behind a transposition": (
        "t = Transpose <perm = [1, 0, 2]> (x)  m = ReduceMean <axes = [1]> (t)  y = Sub (t, m)",
        "ReduceMean",
    ),
    "a softmax over the batch": ("y = Softmax <axis = 0> (x)", "Softmax"),
    "a softmax of scalars": (
        "s = ReduceSum <keepdims = 0> (x, both)  y = Softmax <axis = -1> (s)",
        "Softmax",
    ),
    "merged axes, then a softmax": (
        "flat = Constant <value_ints = [-1, 4]> ()  m = Reshape (x, flat)  y = Softmax <axis = 0> (m)",
        "Softmax",
    ),
    "flattened, then a sum": ("f = Flatten <axis = 0> (x)  y = ReduceSum (f, one)", "ReduceSum"),
    "the products of rows": (
        "s = ReduceSum <keepdims = 0> (x, one)  t = Transpose (s)  y = MatMul (s, t)",
        "MatMul",
    ),
    "the largest of the batch": ("y, i = TopK <axis = 0> (x, one)", "TopK"),
    "the best row": ("y = ArgMax <axis = 0> (x)", "ArgMax"),
    "a cumulative sum over rows": ("y = CumSum (x, zero)", "CumSum"),
    "batch normalization in training": (
        "y, m, v = BatchNormalization <training_mode = 1> (x, four, four, four, four)",
        "BatchNormalization",
    ),
    "one row for all": ("g = Gather <axis = 0> (x, zero)  y = Sub (x, g)", "Gather"),
    "rows in reverse": ("y = Slice (x, last, lowest, zero, last)", "Slice"),
    "a recurrence over the batch": ("y, h = RNN <hidden_size = 1> (x, w, r)", "RNN"),
    "einsum over rows": ('y = Einsum <equation = "bsh,bth->sth"> (x, x)', "Einsum"),
    "a sum of non-zero positions": ("y = NonZero (x)", "NonZero"),
    "frames that a short sample does not have": (
        "begin = Constant <value_ints = [500]> ()  end = Constant <value_ints = [1000]> ()"
        "  s = Slice (x, begin, end, one)  flat = Constant <value_ints = [-1, 4]> ()  y = Reshape (s, flat)",
        "Reshape",
    ),
    "within a branch": (
        "n = Size (x)  c = Greater (n, one_s)"
        "  y = If (c) <then_branch = a () => (float[B, S, 4] u) { m = ReduceMax <axes = [0]> (x)  u = Sub (x, m) },"
        "  else_branch = b () => (float[B, S, 4] v) { v = Neg (x) }>",
        "ReduceMax",
    ),
    "within a branch of a branch": (
        "n = Size (x)  c = Greater (n, one_s)  s = Shape (x)  e = Expand (one_f, s)"
        "  y = If (c) <then_branch = a () => (float[B, S, 4] u) {"
        "  u = If (c) <then_branch = a () => (float[B, S, 4] t) { m = ReduceMax <axes = [0]> (x)  t = Sub (x, m) },"
        "  else_branch = b () => (float[B, S, 4] v) { v = Neg (x) }> },"
        "  else_branch = b () => (float[B, S, 4] w) { w = Neg (e) }>",
        "ReduceMax",
    ),
}
CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64[1] lowest = {-100},
    int64[2] both = {1, 2}, float[1] one_f = {1}, int64 one_s = {1}, float[4] four = {1, 1, 1, 1},
    float[1, 1, 4] w = {1, 1, 1, 1}, float[1, 1, 1] r = {1}"""


def graph(nodes: str, shape: str = "B, S, 4") -> ir.Model:
    """Nodes from ``x`` to ``y``."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (y) <{CONSTANTS}> {{ {nodes} }}'
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_are_independent(name: str) -> None:
    assert batch_independence.find(graph(INDEPENDENT[name])).mixed_by == ""


@pytest.mark.parametrize("name", MIXING)
def test_finds_the_first_node_that_mixes_rows(name: str) -> None:
    nodes, operator = MIXING[name]
    assert batch_independence.find(graph(nodes)).mixed_by.startswith(operator)


def test_a_reduction_of_what_does_not_depend_on_data_mixes_nothing() -> None:
    nodes = "s = Shape (x)  e = Expand (one_f, s)  m = ReduceMax <keepdims = 0> (e)  y = Add (x, m)"
    assert batch_independence.find(graph(nodes)).mixed_by == ""


@pytest.mark.parametrize(
    ("nodes", "has_rows"),
    [
        ("y = Neg (x)", True),
        ("y = Identity (four)", False),
        ("y = Shape (x)", False),
        ("s = Shape (x)  two = Constant <value_int = 2> ()  y = Gather (s, two)", False),
        ("t = Transpose <perm = [1, 0, 2]> (x)  y = Neg (t)", False),
        ("flat = Constant <value_ints = [-1, 4]> ()  y = Reshape (x, flat)", False),
        ("y = com.microsoft.Unknown (x)", True),  # nothing says otherwise
    ],
)
def test_outputs_that_have_no_rows(nodes: str, has_rows: bool) -> None:
    model = graph(nodes)
    assert batch_independence.find(model).without == (() if has_rows else ("y",))


def test_a_fixed_batch_cannot_be_mixed() -> None:
    assert batch_independence.find(graph("y = Softmax <axis = 0> (x)", "1, S, 4")).mixed_by == ""


def test_flattening_softmax_of_old_opsets() -> None:
    model = graph("y = Softmax <axis = 0> (x)")
    model.graph.opset_imports[""] = 12
    assert batch_independence.find(model).mixed_by.startswith("Softmax")
    model = graph("y = Softmax <axis = 1> (x)")
    model.graph.opset_imports[""] = 12
    assert batch_independence.find(model).mixed_by == ""


def test_unknown_operators_may_mix_rows() -> None:
    text = '<ir_version: 8, opset_import: ["other" : 1]> g (float[B, 4] x) => (float[B, 4] y) { y = other.F (x) }'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert batch_independence.find(model).mixed_by == "other.F"


@pytest.mark.parametrize(
    ("nodes", "mixed_by"),
    [
        ("y = Softmax <axis = -1> (u)", ""),
        ("y, h = LSTM <hidden_size = 1> (u, w, r)", ""),
        ("y = ReduceMean <axes = [-1]> (u)", ""),
        ("y = ReduceMean <axes = [0]> (u)", "ReduceMean"),
        ("y = ReduceMax (u)", "ReduceMax"),
        ("y, s, z = DynamicQuantizeLinear (u)", "DynamicQuantizeLinear"),
    ],
)
@pytest.mark.parametrize("opset", [12, 17])
def test_where_shapes_are_unknown_the_batch_is_the_first_axis(nodes: str, mixed_by: str, opset: int) -> None:
    model = graph(f"u = com.microsoft.Unknown (x)  {nodes}")
    model.graph.opset_imports.update({"": opset, "com.microsoft": 1})
    assert batch_independence.find(model).mixed_by == mixed_by


def test_does_not_change_the_model() -> None:
    model = small_bert.build()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert batch_independence.find(model).mixed_by == ""
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("dialect", ["com.microsoft", "primitive"])
def test_packed_graphs_are_independent(dialect: str, tmp_path: Path) -> None:
    model = small_bert.build()
    transform(model, Target(packed=True, dialect=dialect))
    files.write(model, tmp_path / "packed.onnx")
    assert batch_independence.find(files.read(tmp_path / "packed.onnx")).mixed_by == ""


def dependences(label: str) -> list[str]:
    """What is reported of an export, as it is and fused."""
    model = exports.model(label)
    as_exported = batch_independence.find(model).mixed_by
    return [as_exported, batch_independence.find(model).mixed_by] if fuse(model).is_encoder else [as_exported]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "label", sorted({exports.entry(label)["archive"]: label for label in exports.manifest()}.values())
)
def test_exports_are_independent(label: str) -> None:
    assert not any(dependences(label))


@pytest.mark.long
@pytest.mark.parametrize("label", [*exports.manifest(), *exports.modern()])
def test_every_export_is_independent(label: str) -> None:
    assert not any(dependences(label))
