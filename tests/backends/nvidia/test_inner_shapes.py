"""Shapes inside a graph, against those of a run."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_text
import tiny
from isorun.models import lowering
from isorun.models.source import open_model
from isorun.system.cache import Cache
from isorun_backends.nvidia.inner_shapes import inner_shapes, rename_inner_tensors
from isorun_backends.nvidia.shape_profiles import Profile

PROFILE = Profile({"batch": (1, 2, 4), "sequence": (1, 8, 16)})


@pytest.mark.parametrize("dialect", ["primitive", "onnx"])
def test_are_those_of_runs_at_both_ends(bert, tmp_path, dialect):
    cache = Cache(tmp_path)
    lowered = lowering.ModelGraphs(open_model(bert, cache), cache).lower((dialect,))
    model = onnx.load(lowered.path)
    rename_inner_tensors(model)
    shapes = inner_shapes(model, PROFILE)
    names = [name for node in model.graph.node for name in node.output if name]
    assert len(shapes) > 0.9 * len(names)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in shapes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for end, (batch, sequence) in ((0, (1, 1)), (1, (2, 8)), (2, (4, 16))):
        results = session.run(list(shapes), tiny.feeds(batch, sequence))
        for name, result in zip(shapes, results, strict=True):
            assert tuple(shapes[name][end]) == np.shape(result), name


def test_leaves_out_what_depends_on_values():
    model = onnx_text.graph(
        "g (int64[batch] x) => (int64[n] y) { found = NonZero(x) flat = Reshape(found, shape) y = Neg(flat) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "shape"))
    assert inner_shapes(model, PROFILE) == {}


def test_renames_what_onnx_runtimes_options_cannot_name():
    make = onnx.helper.make_node
    value = onnx.helper.make_empty_tensor_value_info
    then = onnx.helper.make_graph([], "then", [], [value("a:0")])
    otherwise = onnx.helper.make_graph([make("Neg", ["a:0"], ["z"])], "other", [], [value("z")])
    nodes = [
        make("Neg", ["x:0"], ["a:0"]),
        make("Abs", ["a:0"], ["a_0"]),
        make("If", ["a_0"], ["y:0"], then_branch=then, else_branch=otherwise),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value("x:0")], [value("y:0")]))
    rename_inner_tensors(model)
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    assert names == ["x:0", "a_0_", "a_0_", "a_0", "a_0", "y:0"]
    branches = {attribute.name: attribute.g for attribute in model.graph.node[-1].attribute}
    assert branches["then_branch"].output[0].name == branches["else_branch"].node[0].input[0] == "a_0_"
