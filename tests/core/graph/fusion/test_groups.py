"""Layers in groups (SqueezeBERT): what two of them have between them is not joined."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import onnx_text
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions

LAYERS, GROUPS = 3, 4


@pytest.mark.parametrize("label", ["squeezebert-torchscript17-eager", "squeezebert-dynamo18-eager"])
def test_each_group_has_its_own_activation(label: str) -> None:
    model = exports.fused(label)
    fused = [node for node in model.graph if functions.is_fused(node)]
    assert [node.op_type for node in fused].count("BiasGelu") == LAYERS * GROUPS
    joined = [node for node in model.graph if node.op_type == "Concat" and node.attributes.get_int("axis", 0) == -1]
    assert len(joined) == LAYERS * 4  # queries, keys, values, and the output
    feeds = exports.given(label)
    assert exports.agree(label, exports.run(model, feeds))


@pytest.mark.parametrize(
    ("axis", "columns", "groups"),
    [(-1, (4, 4), 2), (-1, (2, 6), None), (1, (4, 4), None)],
    ids=["equal groups", "groups of other widths", "parts of rows"],
)
def test_layers_of_equal_parts_of_the_width_are_groups(axis: int, columns: tuple[int, int], groups: int | None) -> None:
    body = f"a, b = Split<axis={axis}>(x) p = MatMul(a, v) q = MatMul(b, w) y = Concat<axis=-1>(p, q)"
    proto = onnx_text.graph(f"g (float[b,s,8] x) => (float[b,s,8] y) {{ {body} }}")
    rows = 4 if axis == -1 else 8
    for name, width in zip("vw", columns, strict=True):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones((rows, width), np.float32), name))
    model = ir.serde.deserialize_model(proto)
    layer = subgraph.projection(model.graph.outputs[0])
    assert (layer and layer.groups) == groups
