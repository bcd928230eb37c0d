"""Constants of uint32 and uint64 that are not stored as raw data."""

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import isorun

BACKENDS = ("ort-cpu", "openvino", "reference")
KINDS = (onnx.TensorProto.UINT32, onnx.TensorProto.UINT64)


def model(kind: int, *, as_node: bool) -> onnx.ModelProto:
    """``y`` is ``x`` times 1, 2 and 5."""
    factors = oh.make_tensor("c", kind, [3], [1, 2, 5])
    assert factors.uint64_data
    nodes = [oh.make_node("Cast", ["c"], ["f"], to=1), oh.make_node("Mul", ["x", "f"], ["y"])]
    if as_node:
        nodes.insert(0, oh.make_node("Constant", [], ["c"], value=factors))
    values = [oh.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    graph = oh.make_graph(nodes, "g", values[:1], values[1:], [] if as_node else [factors])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_node", [False, True])
def test_are_read_by_every_backend(backend: str, kind: int, as_node: bool) -> None:
    with isorun.Session(model(kind, as_node=as_node), backend) as session:
        assert session.run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [1, 2, 5]


def test_given_model_stays_as_it_is() -> None:
    proto = model(KINDS[0], as_node=False)
    before = proto.SerializeToString()
    isorun.Session(proto, "ort-cpu").close()
    assert proto.SerializeToString() == before
