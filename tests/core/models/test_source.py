"""Opening models: fingerprints, and what is rejected."""

import hashlib
import os

import numpy as np
import onnx
import pytest

from isorun.errors import InvalidModel
from isorun.graph.io import files
from isorun.models.source import open_model
from isorun.system.cache import Cache


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_the_fingerprint_is_the_hash_of_the_file(bert, cache):
    expected = hashlib.sha256(bert.read_bytes()).hexdigest()
    for model in (bert, str(bert), bert.read_bytes(), memoryview(bert.read_bytes()), bytearray(bert.read_bytes())):
        assert open_model(model, cache).fingerprint == expected


def test_the_fingerprint_covers_external_weights(bert, cache, tmp_path):
    files.write(files.read(bert), tmp_path / "m.onnx", beside_above=0)
    before = open_model(tmp_path / "m.onnx", cache).fingerprint
    content = bytearray((tmp_path / "m.weights.bin").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m.weights.bin").write_bytes(content)
    assert open_model(tmp_path / "m.onnx", cache).fingerprint != before


@pytest.mark.parametrize("model", [3, None, 2.5, ["model.onnx"], np.zeros(3), object()])
def test_rejects_what_is_not_a_model(model, cache):
    with pytest.raises(InvalidModel, match=type(model).__name__):
        open_model(model, cache)


@pytest.mark.parametrize(
    "path", ["none.onnx", "no/such/folder/model.onnx", "weird\n\0name", "~nobody-of-that-name/model.onnx"]
)
def test_rejects_a_missing_file(path, cache, tmp_path):
    with pytest.raises(InvalidModel, match="no model at"):
        open_model(path if path.startswith("~") else str(tmp_path / path), cache)


def test_rejects_an_empty_path_and_addresses(cache):
    with pytest.raises(InvalidModel, match="empty path"):
        open_model("", cache)
    with pytest.raises(InvalidModel, match="not downloaded from addresses"):
        open_model("https://example.org/model.onnx", cache)


def test_suggests_a_file_or_a_command_for_a_missing_file(cache, tmp_path):
    (tmp_path / "minilm.onnx").touch()
    (tmp_path / "minlm.py").touch()
    (tmp_path / "minlm-out").mkdir()
    with pytest.raises(InvalidModel, match=r"did you mean .*/minilm\.onnx\?"):
        open_model(tmp_path / "minlm.onnx", cache)
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").touch()
    with pytest.raises(InvalidModel, match=r"did you mean .*/encoder\?"):
        open_model(tmp_path / "encodr", cache)
    with pytest.raises(InvalidModel, match="isorun build"):
        open_model(tmp_path / "bert-base-uncased", cache)
    with pytest.raises(InvalidModel) as unlike:  # in all but its suffix
        open_model(tmp_path / "s.onnx", cache)
    assert "did you mean" not in str(unlike.value)


def test_rejects_pipes_broken_links_and_folders(cache, tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "link.onnx").symlink_to("gone.onnx")
    (tmp_path / "folder").mkdir()
    for name, reason in (("pipe.onnx", "regular file"), ("link.onnx", r"link to gone\.onnx"), ("folder", "config")):
        with pytest.raises(InvalidModel, match=reason):
            open_model(tmp_path / name, cache)


@pytest.mark.parametrize(("damage", "reason"), [("empty", "empty"), ("cut", "truncated"), ("text", "not an ONNX")])
@pytest.mark.parametrize("form", ["path", "bytes"])
def test_rejects_a_damaged_file(bert, cache, tmp_path, damage, reason, form):
    content = {"empty": b"", "cut": bert.read_bytes()[:-3], "text": b"weights: 1"}[damage]
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    name = "damaged.onnx" if form == "path" else "given as bytes"
    with pytest.raises(InvalidModel, match=f"{name} .*{reason}"):
        open_model(path if form == "path" else content, cache)


def test_rejects_an_empty_proto(cache):
    with pytest.raises(InvalidModel, match=r"onnx\.ModelProto"):
        open_model(onnx.ModelProto(), cache)
