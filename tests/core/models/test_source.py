from __future__ import annotations

import hashlib
import os
import shutil

import numpy as np
import onnx
import onnx.parser
import pytest

import tiny
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.graph.io import files
from isorun.models import source as models
from isorun.system.cache import Cache

DIALECTS = ("com.microsoft", "onnx", "primitive")
PLAIN = '<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def own(bert, tmp_path):
    """A copy of the model, to do things to."""
    return shutil.copy(bert, tmp_path / "own.onnx")


def test_a_fingerprint_is_the_files(bert, cache):
    expected = hashlib.sha256(bert.read_bytes()).hexdigest()
    for given in (bert, str(bert), bert.read_bytes(), memoryview(bert.read_bytes()), bytearray(bert.read_bytes())):
        assert models.open_model(given, cache).fingerprint == expected


def test_a_fingerprint_covers_weights_that_are_beside(bert, cache, tmp_path):
    files.write(files.read(bert), tmp_path / "m.onnx", beside_above=0)
    before = models.open_model(tmp_path / "m.onnx", cache).fingerprint
    content = bytearray((tmp_path / "m.weights.bin").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m.weights.bin").write_bytes(content)
    assert models.open_model(tmp_path / "m.onnx", cache).fingerprint != before


def test_same_names_and_other_weights_are_another_model(cache, tmp_path):
    from isorun.models import checkpoint

    lowered = []
    for seed in (0, 1):
        folder = tiny.write_checkpoint(tmp_path / str(seed) / "tiny", tiny.weights(seed=seed))
        checkpoint.build(folder, tmp_path / "model.onnx")
        lowered.append(models.lower(models.open_model(tmp_path / "model.onnx", cache), DIALECTS, cache))
    assert lowered[0].fingerprint != lowered[1].fingerprint
    assert lowered[0].path != lowered[1].path


def test_a_changed_file_is_lowered_anew(own, cache):
    first = models.lower(models.open_model(own, cache), DIALECTS, cache)
    again = models.lower(models.open_model(own, cache), DIALECTS, cache)
    assert (first.cached, again.cached, first.path) == (False, True, again.path)
    model = onnx.load(own)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    largest.raw_data = bytes(len(largest.raw_data))
    onnx.save(model, own)
    changed = models.lower(models.open_model(own, cache), DIALECTS, cache)
    assert (changed.cached, changed.path != first.path) == (False, True)


def test_the_first_dialect_that_can_be_had_is_taken(bert, cache):
    source = models.open_model(bert, cache)
    for order in (DIALECTS, DIALECTS[::-1]):
        assert models.lower(source, order, cache).dialect == order[0]
    with pytest.raises(UnsupportedModel, match="reads no dialect"):
        models.lower(source, (), cache)


def test_a_model_without_fused_operators_goes_as_it_came(cache, tmp_path):
    onnx.save(onnx.parser.parse_model(PLAIN), tmp_path / "plain.onnx")
    lowered = models.lower(models.open_model(tmp_path / "plain.onnx", cache), DIALECTS, cache)
    assert (lowered.path, lowered.dialect, lowered.info.fused) == (tmp_path / "plain.onnx", "onnx", {})


def test_code_that_lowers_otherwise_makes_other_entries(bert, cache, monkeypatch):
    first = models.lower(models.open_model(bert, cache), DIALECTS, cache)
    monkeypatch.setattr(models, "code_digest", lambda: "another")
    second = models.lower(models.open_model(bert, cache), DIALECTS, cache)
    assert (second.cached, second.path != first.path) == (False, True)


def test_what_is_known_is_the_same_made_or_found(bert, cache):
    source = models.open_model(bert, cache)
    (made, was), (found, again) = models.inspect(source, cache), models.inspect(source, cache)
    assert (was, again) == (False, True)
    assert made == found
    assert [spec.bounds for spec in found.inputs] == [(0, 98), (0, 1), (0, 1)]
    assert found.limits == {"batch": None, "sequence": tiny.POSITIONS}


def test_lowering_reads_the_model_and_writes_nothing_beside_it(own, cache, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    models.lower(models.open_model(own, cache), DIALECTS, cache)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "cache"}
    assert after == before


@pytest.mark.parametrize("given", [3, None, 2.5, ["model.onnx"], np.zeros(3), object()])
def test_what_is_no_model(given, cache):
    with pytest.raises(InvalidModel, match=f"a {type(given).__name__} came"):
        models.open_model(given, cache)


def test_the_home_of_nobody(cache):
    with pytest.raises(InvalidModel, match=r"There is no model at .*~nobody-of-that-name/model\.onnx"):
        models.open_model("~nobody-of-that-name/model.onnx", cache)


@pytest.mark.parametrize("place", ["none.onnx", "no/such/folder/model.onnx", "weird\n\0name"])
def test_no_file(place, cache, tmp_path):
    with pytest.raises(InvalidModel, match="There is no model at"):
        models.open_model(str(tmp_path / place), cache)


def test_no_file_names_what_is_like_it(cache, tmp_path):
    (tmp_path / "minilm.onnx").touch()
    with pytest.raises(InvalidModel, match=r"no model at .*/minlm\.onnx; did you mean .*/minilm\.onnx\?"):
        models.open_model(tmp_path / "minlm.onnx", cache)
    with pytest.raises(InvalidModel, match=r"no model at .*/bert-base-uncased\. .* isorun build NAME -o"):
        models.open_model(tmp_path / "bert-base-uncased", cache)


def test_a_file_that_is_no_regular_one(cache, tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InvalidModel, match=r"pipe\.onnx is no regular file"):
        models.open_model(tmp_path / "pipe.onnx", cache)


def test_a_link_to_nothing(tmp_path, cache):
    (tmp_path / "link.onnx").symlink_to("gone.onnx")
    with pytest.raises(InvalidModel, match=r"link\.onnx is a link to gone\.onnx, and nothing is there"):
        models.open_model(tmp_path / "link.onnx", cache)


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
@pytest.mark.parametrize("given", ["path", "bytes"])
def test_a_damaged_file(own, cache, damage, given):
    content = {"empty": b"", "cut": own.read_bytes()[:-3], "text": b"weights: 1"}[damage]
    own.write_bytes(content)
    said = {"empty": "is empty", "cut": "cut short", "text": "not an ONNX model"}[damage]
    name = r"own\.onnx" if given == "path" else "the model given as bytes"
    with pytest.raises(InvalidModel, match=f"{name} .*{said}"):
        models.open_model(own if given == "path" else content, cache)


def test_a_proto_that_is_no_model(cache):
    with pytest.raises(InvalidModel, match=r"the onnx\.ModelProto"):
        models.open_model(onnx.ModelProto(), cache)


def test_a_folder_without_a_config(cache, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidModel, match=r"empty is a folder without a config\.json"):
        models.open_model(tmp_path / "empty", cache)
