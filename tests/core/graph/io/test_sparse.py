"""Sparse constants and initializers: they run as in ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import pytest
from onnx import numpy_helper

import isorun
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.graph.io import files, storage

FEED = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
OPSET = [oh.make_opsetid("", 17), oh.make_opsetid("own", 1)]
X, Y = (oh.make_tensor_value_info(name, 1, ["N", width]) for name, width in (("x", 3), ("y", 2)))


def tensor(
    name: str = "w", *, linear: bool = True, dims: tuple[int, ...] = (3, 2), last: int = 3
) -> onnx.SparseTensorProto:
    """1.5 at [0, 0] and -2 at ``last``, by default [1, 1]."""
    indices = np.array([0, last]) if linear else np.array([[0, 0], [last // 2, last % 2]])
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), name)
    return oh.make_sparse_tensor(values, numpy_helper.from_array(indices, f"{name}_indices"), list(dims))


def product(name: str, **options: object) -> list[onnx.NodeProto]:
    """``name = x w`` with a sparse constant ``w``."""
    constant = oh.make_node("Constant", [], [f"{name}_w"], sparse_value=tensor(**options))
    return [constant, oh.make_node("MatMul", ["x", f"{name}_w"], [name])]


def model(nodes: list[onnx.NodeProto], **more: object) -> onnx.ModelProto:
    functions = more.pop("functions", [])
    graph = oh.make_graph(nodes, "g", [X], [Y], **more)
    return oh.make_model(graph, opset_imports=OPSET, ir_version=8, functions=functions)


def branches() -> onnx.ModelProto:
    then, otherwise = (
        oh.make_graph(product(name), name, [], [oh.make_tensor_value_info(name, 1, ["N", 2])]) for name in ("a", "b")
    )
    condition = oh.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    return model([condition, oh.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)])


def function() -> onnx.ModelProto:
    own = oh.make_function("own", "f", ["x"], ["r"], product("r"), OPSET[:1])
    return model([oh.make_node("f", ["x"], ["y"], domain="own")], functions=[own])


MODELS = {
    "a constant": model(product("y")),
    "a constant, indices by dimension": model(product("y", linear=False)),
    "an initializer": model([oh.make_node("MatMul", ["x", "w"], ["y"])], sparse_initializer=[tensor()]),
    "in a branch": branches(),
    "in a function": function(),
}


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_runs_as_onnx_runtime_does(name: str, backend: str) -> None:
    content = MODELS[name].SerializeToString()
    expected = np.array([[0, -2], [4.5, -8]], np.float32)
    if name != "in a function":  # ONNX Runtime 1.31.1 itself runs that, but crashed twice, after other tests
        np.testing.assert_array_equal(onnxruntime.InferenceSession(content).run(None, FEED)[0], expected)
    try:
        session = isorun.Session(content, backend)
    except UnsupportedModel:
        assert (name, backend) == ("in a function", "openvino")  # it has no functions
        return
    with session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], expected)


def test_reads_external_values(tmp_path: Path) -> None:
    proto = model(product("y"))
    values = proto.graph.node[0].attribute[0].sparse_tensor.values
    (tmp_path / "values.bin").write_bytes(np.array([1.5, -2], np.float32).tobytes())
    onnx.external_data_helper.set_external_data(values, "values.bin", length=8)
    values.ClearField("raw_data")
    values.data_location = onnx.TensorProto.EXTERNAL
    onnx.save(proto, tmp_path / "model.onnx")
    with isorun.Session(tmp_path / "model.onnx", "ort-cpu") as session:
        assert session.run(None, FEED)[0].tolist() == [[0, -2], [4.5, -8]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": (2**20, 2**20)}, "1048576 x 1048576; at most 268,435,456"),
        ({"dims": (-3, 2)}, "is -3 x 2"),
        ({"last": 6}, r"index out of the range of its shape \[3, 2\]"),
        ({"last": -1}, "index out of the range"),
        ({"linear": False, "dims": (3, 2, 1)}, r"indices of shape \[2, 2\]; expected \[N\], and \[N\] or \[N, 3\]"),
    ],
)
def test_rejects_invalid_sparse_tensors(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        files.from_proto(model(product("y", **options)), "the model")


def test_a_model_without_sparse_tensors_is_not_copied() -> None:
    dense = model([oh.make_node("MatMul", ["x", "w"], ["y"])])
    assert storage.readable(dense, "") is dense
    assert not files.is_changed(files.from_proto(storage.readable(MODELS["a constant"], ""), ""))
    assert files.is_changed(files.from_proto(MODELS["a constant"], ""))
