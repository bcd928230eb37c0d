"""Weights beside a model: which files are read, and which are refused."""

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
    path.parent.mkdir(exist_ok=True, parents=True)
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


def initializer(location: str, path: Path, data: Path | None = None) -> Path:
    """A model whose weight is in a file, which is written if ``data`` says where."""
    if data is not None:
        data.parent.mkdir(exist_ok=True, parents=True)
        data.write_bytes(DATA.tobytes())
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [X], [Y], [elsewhere(location)])
    return written(graph, path, [])


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_reads_external_data_below_the_folder(tmp_path, location):
    path = initializer(location, tmp_path / "model.onnx", tmp_path / location)
    assert files.external_files(files.read_proto(path)) == [location]
    np.testing.assert_array_equal(files.read(path).graph.initializers["w"].const_value.numpy(), DATA)


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "absolute", "", "..", "sub/../w.bin"])
def test_rejects_external_data_outside_the_folder(tmp_path, location):
    (tmp_path / "home" / "sub").mkdir(parents=True)
    location = str(tmp_path / "w.bin") if location == "absolute" else location
    path = initializer(location, tmp_path / "home" / "model.onnx", tmp_path / "w.bin")
    with pytest.raises(InvalidModel, match=r"outside the model's folder") as caught:
        files.read_proto(path)
    assert repr(location) in str(caught.value)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_rejects_external_data_behind_a_link(tmp_path, what):
    path = initializer("sub/w.bin", tmp_path / "home" / "model.onnx", tmp_path / "elsewhere" / "w.bin")
    if what == "file":
        (tmp_path / "home" / "sub").mkdir()
        (tmp_path / "home" / "sub" / "w.bin").symlink_to(tmp_path / "elsewhere" / "w.bin")
    else:
        (tmp_path / "home" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidModel, match=r"outside the model's folder"):
        files.read_proto(path)


def test_rejects_missing_external_data(tmp_path):
    with pytest.raises(InvalidModel, match=r"'w\.bin' \(tensor 'w'\).*No such file"):
        files.read_proto(initializer("w.bin", tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("extent", "size", "message"),
    [
        ({}, 15, r"'w.bin' \(tensor 'w'\) up to byte 16, .* 15"),
        ({"length": "16"}, 15, "up to byte 16, .* 15"),
        ({"length": "8"}, 32, "as 8 bytes.* 16"),
        ({"length": "20"}, 32, "as 20 bytes"),
        ({"offset": "0", "length": "99999"}, 32, "up to byte 99999"),
        ({"offset": "4096", "length": "4"}, 32, "up to byte 4112"),
        ({"offset": "-4"}, 32, "with {'offset': '-4'}"),
        ({"offset": "4.0"}, 32, "expected numbers of bytes"),
        ({"offset": "9" * 5000}, 32, "expected numbers of bytes"),
        ({"offset": "0", "length": "many"}, 32, "'length': 'many'"),
        ({"location": "w.bin"}, 32, "repeated"),
    ],
)
def test_rejects_a_wrong_extent(tmp_path, extent, size, message):
    path = initializer("w.bin", tmp_path / "model.onnx")
    (tmp_path / "w.bin").write_bytes(bytes(size))
    proto = onnx.ModelProto.FromString(path.read_bytes())
    for key, value in extent.items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match=message):
        files.read_proto(path)


def test_rejects_invalid_file_names(tmp_path):
    for location in ("w\0.bin", "n" * 5000):
        with pytest.raises(InvalidModel, match="keeps weights in"):
            files.read_proto(initializer(location, tmp_path / "model.onnx"))


def test_rejects_external_data_of_a_model_in_memory(tmp_path):
    content = initializer("w.bin", tmp_path / "model.onnx").read_bytes()
    with pytest.raises(InvalidModel, match=r"keeps weights in the file 'w\.bin'.*model's path"):
        files.parse(content, "the bytes")


def test_checks_external_data_of_all_tensors(tmp_path):
    """In attributes, sub-graphs and functions as well as among the weights."""
    constant = helper.make_node("Constant", [], ["c"], value=elsewhere("../out.bin"))
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [4])])
    deep = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("x", TensorProto.BOOL, [])
    function = helper.make_function("f", "F", [], ["c"], [constant], OPSETS[:1])
    for graph, functions in (
        (helper.make_graph([deep], "g", [condition], [Y]), []),
        (helper.make_graph([helper.make_node("F", [], ["y"], domain="f")], "g", [condition], [Y]), [function]),
    ):
        with pytest.raises(InvalidModel, match=r"'\.\./out\.bin' \(tensor 'w'\), which is outside"):
            files.read_proto(written(graph, tmp_path / "model.onnx", functions))


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


def test_rejects_external_data_without_a_file_name(tmp_path):
    path = initializer("w.bin", tmp_path / "model.onnx")
    proto = onnx.ModelProto.FromString(path.read_bytes())
    proto.graph.initializer[0].ClearField("external_data")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match="keeps weights in ''"):
        files.read_proto(path)


@pytest.mark.sampled(3)
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
        for output, expected in zip(linked.run(None, feeds), whole.run(None, feeds), strict=True):
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_tensors_of_attributes_are_written_into_the_file(tmp_path):
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    model = files.read(default_attribute("w.bin", tmp_path / "model.onnx"))
    (tmp_path / "other").mkdir()
    files.write(model, tmp_path / "other" / "out.onnx", beside_above=0)
    assert files.external_files(files.read_proto(tmp_path / "other" / "out.onnx")) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_cannot_be_quantized_are_named(tmp_path, bert, number):
    model = onnx.load(bert)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "encoder.layer.0.output.dense.weight")
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] = number
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [{name: np.ones((8, 40), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}]
    for precision in ("int8", "auto"):
        with pytest.raises(InvalidModel, match=rf"encoder\.layer\.0\.output\.dense\.weight.*{number}"):
            isorun.Session(tmp_path / "model.onnx", "openvino", precision=precision, calibration=feeds)
