"""Weights beside a model: which files are read, and which are refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import isorun
from isorun.errors import InvalidModel
from isorun.graph.io import files

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
DATA = np.arange(4, dtype=np.float32)


def elsewhere(location: str) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(DATA, "w")
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    return tensor


def written(graph: onnx.GraphProto, path: Path, functions: list[onnx.FunctionProto]) -> Path:
    path.parent.mkdir(exist_ok=True)
    model = helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def default_attribute(location: str, path: Path) -> Path:
    """A model whose weight is the default of a function's attribute."""
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.add(name="value", ref_attr_name="w", type=onnx.AttributeProto.TENSOR)
    nodes = [constant, helper.make_node("Add", ["a", "c"], ["b"])]
    default = helper.make_attribute("w", elsewhere(location))
    function = helper.make_function("f", "F", ["a"], ["b"], nodes, OPSETS[:1], attribute_protos=[default])
    graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="f")], "g", [X], [Y])
    return written(graph, path, [function])


def initializer(location: str, path: Path) -> Path:
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [X], [Y], [elsewhere(location)])
    return written(graph, path, [])


@pytest.mark.parametrize("absolute", [True, False])
def test_rejects_a_default_attribute_in_a_foreign_file(tmp_path, absolute):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(DATA.tobytes())
    path = default_attribute(str(secret) if absolute else "../secret.bin", tmp_path / "home" / "model.onnx")
    with pytest.raises(InvalidModel, match=r"secret\.bin' \(tensor 'w'\), which is outside the model's folder"):
        isorun.Session(path, "ort-cpu")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_rejects_what_is_not_a_regular_file_without_opening_it(tmp_path, make):
    make(tmp_path / "w.bin")
    with pytest.raises(InvalidModel, match=r"'w\.bin' \(tensor 'w'\)"):
        isorun.Session(initializer("w.bin", tmp_path / "model.onnx"), "ort-cpu")


def test_rejects_a_loop_of_links_and_a_model_that_is_a_pipe(tmp_path):
    (tmp_path / "w.bin").symlink_to("w.bin")
    with pytest.raises(InvalidModel, match=r"w\.bin"):
        files.read_proto(initializer("w.bin", tmp_path / "model.onnx"))
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InvalidModel, match="pipe"):
        files.read_proto(tmp_path / "pipe.onnx")


def test_rejects_a_length_that_is_not_the_tensors(tmp_path):
    (tmp_path / "w.bin").write_bytes(DATA.tobytes() * 2)
    path = initializer("w.bin", tmp_path / "model.onnx")
    proto = onnx.ModelProto.FromString(path.read_bytes())
    for value, message in (("8", "as 8 bytes.* 16"), ("20", "as 20 bytes")):
        proto.graph.initializer[0].external_data.add(key="length", value=value)
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(InvalidModel, match=message):
            files.read_proto(path)
        proto.graph.initializer[0].external_data.pop()


def test_rejects_external_data_without_a_file_name_or_with_two(tmp_path):
    path = initializer("w.bin", tmp_path / "model.onnx")
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    proto = onnx.ModelProto.FromString(path.read_bytes())
    proto.graph.initializer[0].external_data.add(key="location", value="w.bin")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match="repeated"):
        files.read_proto(path)
    proto.graph.initializer[0].ClearField("external_data")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match="keeps weights in ''"):
        files.read_proto(path)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("layout", ["hard link", "hub"])
def test_linked_weights_are_read(tmp_path, bert, backend, layout):
    """Of an encoder, which isorun reads, and of another model, which the runtime reads."""
    source = tmp_path / "source"
    source.mkdir()
    files.write(files.read(bert), source / "bert.onnx", beside_above=0)
    initializer("w.bin", source / "plain.onnx")
    (source / "w.bin").write_bytes(DATA.tobytes())
    home = tmp_path / "home" / "snapshots" / "1"
    home.mkdir(parents=True)
    for index, file in enumerate(sorted(source.iterdir())):
        if layout == "hard link":
            (home / file.name).hardlink_to(file)
        else:
            blob = tmp_path / "home" / f"blob-{index}"
            shutil.copy(file, blob)
            (home / file.name).symlink_to(f"../../{blob.name}")
    with isorun.Session(home / "plain.onnx", backend) as session:
        np.testing.assert_array_equal(session.run(None, {"x": DATA})[0], 2 * DATA)
    feeds = {name: np.ones((1, 3), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    with isorun.Session(home / "bert.onnx", backend) as linked, isorun.Session(bert, backend) as whole:
        assert linked.provenance.fused
        for one, other in zip(linked.run(None, feeds), whole.run(None, feeds), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_tensors_of_attributes_are_written_into_the_file(tmp_path):
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    model = files.read(default_attribute("w.bin", tmp_path / "model.onnx"))
    (tmp_path / "other").mkdir()
    files.write(model, tmp_path / "other" / "out.onnx", beside_above=0)
    assert files.external_files(files.read_proto(tmp_path / "other" / "out.onnx")) == []


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_cannot_be_quantized_are_named(tmp_path, bert, number):
    model = onnx.load(bert)
    weight = next(each for each in model.graph.initializer if each.name == "encoder.layer.0.output.dense.weight")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] = number
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [{name: np.ones((8, 40), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}]
    for precision in ("int8", "auto"):
        with pytest.raises(InvalidModel, match=rf"encoder\.layer\.0\.output\.dense\.weight.*{number}"):
            isorun.Session(tmp_path / "model.onnx", "openvino", precision=precision, calibration=feeds)
