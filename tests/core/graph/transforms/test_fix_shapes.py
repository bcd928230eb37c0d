"""Models for fixed shapes."""

import onnx.parser
import onnx_ir as ir
import pytest

import small_bert
from isorun.graph.ops import lower
from isorun.graph.transforms import fix_shapes

FLATTEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, length, 4] x, float[2] offset) => (float[rows, width] y, int64[n] places)
<float[2] offset = {0, 0}, int64[1] first = {0}, int64[1] all = {-1}>
{
  sizes = Shape (x)
  batch = Gather (sizes, first)
  shape = Concat <axis = 0> (batch, all)
  y = Reshape (x, shape)
  places = NonZero (x)
}"""


def test_what_follows_from_sizes_is_computed():
    model = ir.from_proto(onnx.parser.parse_model(FLATTEN))
    assert fix_shapes.apply(model, {"x": (3, 5, 4)}) == {"y": (3, 20)}
    assert [node.op_type for node in model.graph] == ["Reshape", "NonZero"]
    assert [value.shape for value in model.graph.inputs] == [ir.Shape([3, 5, 4]), ir.Shape([2])]


@pytest.mark.parametrize("dialect", ["primitive", "static"])
def test_every_value_of_an_encoder_has_a_fixed_shape(dialect):
    model = small_bert.build()
    lower.lower(model, dialect)
    names = [value.name for value in model.graph.inputs]
    outputs = fix_shapes.apply(model, dict.fromkeys(names, (2, 9)))
    assert outputs == {"last_hidden_state": (2, 9, 16), "pooler_output": (2, 16)}
    assert not {"Shape", "Range", "ConstantOfShape", "NonZero"} & {node.op_type for node in model.graph}
    for node in model.graph:
        for value in node.outputs:
            assert value.shape is not None, node
            assert all(isinstance(size, int) for size in value.shape), node
