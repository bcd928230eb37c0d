"""Whatever a file holds, reading it gives a model or an error that says what is wrong with it."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from isorun.errors import InvalidModel
from isorun.graph.io import files


@pytest.fixture(scope="module")
def content(bert):
    return bert.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "is a zip archive, not an ONNX model"),
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
@given(st.integers(0, 2**20))
def test_rejects_a_truncated_model(content, number):
    """Or it lacks the end of what follows the graph, such as functions, which isorun has itself."""
    try:
        proto = files.parse(content[: number % len(content)], "the file")
    except InvalidModel as error:
        assert str(error).startswith("the file")  # noqa: PT017 (either outcome is right)
    else:
        whole = onnx.load_from_string(content)
        for end in ("opset_import", "metadata_props", "functions"):
            del getattr(whole, end)[len(getattr(proto, end)) :]
        assert proto == whole


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_never_crash(content):
    try:
        files.parse(content, "the bytes")
    except InvalidModel as error:
        assert str(error).startswith("the bytes")  # noqa: PT017 (either outcome is right)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3000), st.integers(1, 255))
def test_a_flipped_byte_never_crashes(content, place, change):
    damaged = bytearray(content)
    damaged[place] ^= change
    try:
        files.parse(bytes(damaged), "the file")
    except InvalidModel as error:
        assert str(error).startswith("the file")  # noqa: PT017


def test_leaves_no_empty_file_beside_small_weights(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (float[n] y) <float[1] w = {2}> { y = Mul (x, w) }""")
    onnx.save(model, tmp_path / "source.onnx")
    files.write(files.read(tmp_path / "source.onnx"), tmp_path / "written.onnx", beside_above=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.onnx", "written.onnx"]


def test_writes_large_weights_externally(bert, tmp_path):
    model = files.read(bert)
    size = files.weight_bytes(model)
    files.write(model, tmp_path / "one.onnx", beside_above=size)
    files.write(model, tmp_path / "two.onnx", beside_above=size - 1)
    assert {path.name for path in tmp_path.iterdir()} == {"one.onnx", "two.onnx", "two.weights.bin"}
    assert files.external_files(files.read_proto(tmp_path / "two.onnx")) == ["two.weights.bin"]
    whole, split = (onnx.load(tmp_path / name) for name in ("one.onnx", "two.onnx"))
    for a, b in zip(whole.graph.initializer, split.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))


def test_weights_that_are_in_use_do_not_change(bert, tmp_path):
    """Another process may have mapped them."""
    model, weights = files.read(bert), tmp_path / "model.weights.bin"
    weights.write_bytes(b"before")
    with weights.open("rb") as used:
        files.write(model, tmp_path / "model.onnx", beside_above=0)
        assert used.read() == b"before"
    written = files.read(tmp_path / "model.onnx")
    assert files.weight_bytes(written) == files.weight_bytes(model)
    before = weights.read_bytes()
    large = max(written.graph.initializers.values(), key=lambda value: value.const_value.nbytes)
    large.const_value = ir.LazyTensor(failing, large.dtype, large.shape, name=large.name)
    with pytest.raises(OSError, match=r"model\.onnx cannot be written: No space left"):
        files.write(written, tmp_path / "model.onnx", beside_above=0)
    assert weights.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.weights.bin"]


def failing():
    raise OSError(28, "No space left on device")


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
