"""Whatever a file holds, reading it gives a model or an error that says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from isorun.errors import InvalidModel
from isorun.graph.io import files


@pytest.fixture(scope="module")
def content(bert):
    return bert.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "is not an ONNX model"),
        (b"\x80\x02}q\x00(X", "is not an ONNX model"),
        (b"<html></html>", "is not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\x00" * 64, "is not an ONNX model"),
        (b"\x08\x0a", "without a graph"),
        (b"\x08\x0a\x12", "truncated or damaged"),
    ],
)
def test_rejects_a_file_that_is_not_a_model(tmp_path, content, message):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=f"model.onnx.*{message}"):
        files.read_proto(path)


def test_rejects_an_unreadable_file(tmp_path):
    with pytest.raises(InvalidModel, match=r"none\.onnx cannot be read: No such file"):
        files.read_proto(tmp_path / "none.onnx")
    with pytest.raises(InvalidModel, match="cannot be read: Is a directory"):
        files.read_proto(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rejects_a_truncated_model(content, data):
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(InvalidModel, match="the file"):
        files.parse(content[:length], "the file")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_never_crash(content):
    try:
        files.parse(content, "the bytes")
    except InvalidModel as error:
        assert str(error).startswith("the bytes")  # noqa: PT017 (either outcome is right)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_byte_never_crashes(content, data):
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, 3000))] ^= data.draw(st.integers(1, 255))
    try:
        files.parse(bytes(damaged), "the file")
    except InvalidModel as error:
        assert str(error).startswith("the file")  # noqa: PT017


# External data


def external(folder: Path, location: str, write_to: Path | None = None) -> Path:
    """A model that keeps its one weight in a file, which is written where it is told."""
    weight = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "w")
    if write_to is not None:
        write_to.parent.mkdir(parents=True, exist_ok=True)
        write_to.write_bytes(weight.raw_data)
    onnx.external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    vector = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [vector], [out], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_reads_external_data_below_the_folder(tmp_path, location):
    path = external(tmp_path / "home", location, tmp_path / "home" / location)
    assert files.external_files(files.read_proto(path)) == [location]
    model = files.read(path)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), np.arange(1000, dtype=np.float32))


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "absolute", "", "..", "sub/../w.bin"])
def test_rejects_external_data_outside_the_folder(tmp_path, location):
    (tmp_path / "home" / "sub").mkdir(parents=True)
    location = str(tmp_path / "w.bin") if location == "absolute" else location
    path = external(tmp_path / "home", location, tmp_path / "w.bin")
    with pytest.raises(InvalidModel, match=r"outside the model's folder") as caught:
        files.read_proto(path)
    assert repr(location) in str(caught.value)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_rejects_external_data_behind_a_link(tmp_path, what):
    path = external(tmp_path / "home", "sub/w.bin", tmp_path / "elsewhere" / "w.bin")
    if what == "file":
        (tmp_path / "home" / "sub").mkdir()
        (tmp_path / "home" / "sub" / "w.bin").symlink_to(tmp_path / "elsewhere" / "w.bin")
    else:
        (tmp_path / "home" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidModel, match=r"outside the model's folder"):
        files.read_proto(path)


def test_rejects_missing_external_data(tmp_path):
    with pytest.raises(InvalidModel, match=r"'w\.bin' \(tensor 'w'\).*No such file"):
        files.read_proto(external(tmp_path, "w.bin"))
    (tmp_path / "w.bin").mkdir()
    with pytest.raises(InvalidModel, match="not a regular file"):
        files.read_proto(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        ({}, r"'w.bin' \(tensor 'w'\) up to byte 4000, .* 3999"),
        ({"length": "4000"}, "up to byte 4000, .* 3999"),
        ({"offset": "0", "length": "99999"}, "up to byte 99999"),
        ({"offset": "4096", "length": "4"}, "up to byte 8096"),
        ({"offset": "-4"}, "with {'offset': '-4'}"),
        ({"offset": "4.0"}, "expected numbers of bytes"),
        ({"offset": "9" * 5000}, "expected numbers of bytes"),
        ({"offset": "0", "length": "many"}, "'length': 'many'"),
    ],
)
def test_rejects_incomplete_external_data(tmp_path, extent, message):
    path = external(tmp_path, "w.bin", tmp_path / "w.bin")
    (tmp_path / "w.bin").write_bytes((tmp_path / "w.bin").read_bytes()[:-1])
    proto = onnx.ModelProto.FromString(path.read_bytes())
    for key, value in extent.items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel, match=f"keeps .*{message}"):
        files.read_proto(path)


def test_rejects_invalid_file_names(tmp_path):
    for location in ("w\0.bin", "n" * 5000):
        with pytest.raises(InvalidModel, match="keeps weights in"):
            files.read_proto(external(tmp_path, location))


def test_rejects_external_data_of_a_model_in_memory(tmp_path):
    content = external(tmp_path, "w.bin", tmp_path / "w.bin").read_bytes()
    with pytest.raises(InvalidModel, match=r"keeps weights in the file 'w\.bin'.*model's path"):
        files.parse(content, "the bytes")


def test_checks_external_data_of_all_tensors(tmp_path):
    """In attributes, sub-graphs and functions as well as among the weights."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "t")
    onnx.external_data_helper.set_external_data(tensor, "../out.bin")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [4])])
    deep = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    x = helper.make_tensor_value_info("x", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    function = helper.make_function("f", "F", [], ["c"], [constant], opset[:1])
    for graph, functions in (
        (helper.make_graph([deep], "g", [x], [y]), []),
        (helper.make_graph([helper.make_node("F", [], ["y"], domain="f")], "g", [x], [y]), [function]),
    ):
        model = helper.make_model(graph, opset_imports=opset, functions=functions)
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(InvalidModel, match=r"'\.\./out\.bin' \(tensor 't'\), which is outside"):
            files.read_proto(tmp_path / "model.onnx")


# Writing


def test_writes_large_weights_externally(bert, tmp_path):
    model = files.read(bert)
    size = files.weight_bytes(model)
    files.write(model, tmp_path / "one.onnx", beside_above=size)
    files.write(model, tmp_path / "two.onnx", beside_above=size - 1)
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "two.onnx", "two.weights.bin"}
    assert files.external_files(files.read_proto(tmp_path / "two.onnx")) == ["two.weights.bin"]
    one, two = (onnx.load(tmp_path / name) for name in ("one.onnx", "two.onnx"))
    for a, b in zip(one.graph.initializer, two.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))


def test_reports_a_file_that_cannot_be_written(bert, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/model\.onnx cannot be written"):
        files.write(files.read(bert), tmp_path / "none" / "model.onnx", beside_above=0)


def test_failed_write_keeps_the_previous_file(bert, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")

    def full(model, part, **_):
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ir, "save", full)
    with pytest.raises(OSError, match=r"cannot be written: No space left"):
        files.write(files.read(bert), path, beside_above=10**9)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
