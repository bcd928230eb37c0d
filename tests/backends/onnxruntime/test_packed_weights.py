"""The packed weights that sessions of ort-cpu share: the same numbers, mapped from one file."""

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import isorun
import tiny
from isorun.errors import CacheError
from isorun_backends.onnxruntime import packed_weights


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch):
    """The weights of the tests' models are small."""
    monkeypatch.setattr(packed_weights, "WORTHWHILE", 1)


def packed_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.packed.bin"))


def run(model: Path, cache: Path, **settings) -> list[np.ndarray]:
    with isorun.Session(model, "ort-cpu", cache_dir=cache, **settings) as session:
        return session.run(None, tiny.feeds(3))


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "keep"},
        {"padding": "remove"},
        {"precision": "int8", "calibration": [tiny.feeds(8, 40)]},
    ],
    ids=["keep", "remove", "int8"],
)
def test_outputs_are_those_of_weights_in_memory(bert, tmp_path, monkeypatch, settings):
    made, opened_again = (run(bert, tmp_path / "cache", **settings) for _ in range(2))
    assert packed_files(tmp_path / "cache")
    monkeypatch.setattr(packed_weights, "WORTHWHILE", sys.maxsize)
    in_memory = run(bert, tmp_path / "cache", **settings)
    for first, second, expected in zip(made, opened_again, in_memory, strict=True):
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(second, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_sessions_map_the_file(bert, tmp_path):
    one, two = (isorun.Session(bert, "ort-cpu", cache_dir=tmp_path, threads=threads) for threads in (1, 2))
    with one, two:
        (path,) = packed_files(tmp_path)
        assert str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_another_form_of_the_model_adds_only_what_it_packs_otherwise(bert, tmp_path):
    run(bert, tmp_path, padding="keep")
    (first,) = packed_files(tmp_path)
    run(bert, tmp_path, padding="remove")
    (second,) = set(packed_files(tmp_path)) - {first}
    assert second.stat().st_size < first.stat().st_size


def test_a_form_with_another_hash_has_no_effect(bert, tmp_path):
    expected = run(bert, tmp_path, padding="keep")
    (path,) = (path.with_name(path.name.replace(".packed.bin", ".onnx")) for path in packed_files(tmp_path))
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key.startswith("prepacked_"):  # of bytes that are no weights
                entry.value = re.sub(r"\+\d+", "+1", re.sub(r"\|\d+;", "|0;", entry.value))
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path)
    for array, wanted in zip(session.run(None, tiny.feeds(3)), expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-5)


def test_a_cache_that_cannot_be_written_to_costs_the_sharing_only(bert, tmp_path, monkeypatch):
    class ReadOnly(isorun.plugin.Cache):
        def get_or_make(self, *_, **__):
            raise CacheError("it is read-only")

    monkeypatch.setattr(packed_weights, "Cache", ReadOnly)
    assert run(bert, tmp_path)[0].shape[0] == 3
    assert packed_files(tmp_path) == []


def test_whoever_configures_the_session_decides_on_its_weights(bert, tmp_path):
    run(bert, tmp_path, options={"session_config": {"session.disable_prepacking": 1}})
    assert packed_files(tmp_path) == []
