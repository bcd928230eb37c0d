"""What a session says and leaves behind."""

import logging
import stat
import subprocess
import sys

import numpy as np
import pytest

import isorun
import small_bert
import tiny


@pytest.fixture
def model(tmp_path):
    return small_bert.write(tmp_path / "small.onnx")


def test_long_work_is_logged_with_its_seconds(model, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        isorun.Session(model, "ort-cpu", cache_dir=tmp_path / "cache").close()
    assert {record.name for record in caplog.records} == {"isorun"}
    for work in ("read and fused", "lowered", "compiled", "opened"):
        assert any(line.startswith(work) and line.split(" s")[0][-1].isdigit() for line in caplog.messages), work


def test_repr(model):
    with isorun.Session(model, "ort-cpu", threads=1) as session:
        assert repr(session) == "<isorun.Session of small.onnx on ort-cpu (cpu, fp32, 1 thread)>"
    assert "closed" in repr(session)


def test_a_model_can_be_kept_out_of_the_cache(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ISORUN_CACHE_DIR", str(tmp_path / "cache"))
    feeds = small_bert.feeds(small_bert.np.array([[1, 1, 0]] * 9))
    with isorun.Session(model.read_bytes(), "ort-cpu", cache_dir=False) as session:
        session.run(None, feeds)  # the packed graph, which is made now
        folder = session._cache.root
        assert folder.exists()
    assert not folder.exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("model_mode", "mode"), [("bytes", 0o600), (0o600, 0o600), (0o644, 0o644)])
def test_what_is_made_from_a_private_model_is_private(model, tmp_path, model_mode, mode):
    if model_mode != "bytes":
        model.chmod(model_mode)
    cache = tmp_path / "cache"
    isorun.Session(model.read_bytes() if model_mode == "bytes" else model, "ort-cpu", cache_dir=cache).close()
    models = [path for kind in ("given", "lowered") for path in cache.glob(f"{kind}/*/*.onnx*")]
    assert models
    assert {stat.S_IMODE(path.stat().st_mode) for path in models} == {mode}


def test_what_is_made_from_private_weights_is_private(model, tmp_path):
    import onnx

    split = tmp_path / "split.onnx"
    onnx.save(onnx.load(model), split, save_as_external_data=True, location="split.bin", size_threshold=0)
    split.chmod(0o644)
    (tmp_path / "split.bin").chmod(0o600)
    cache = tmp_path / "cache"
    isorun.Session(split, "ort-cpu", cache_dir=cache).close()
    lowered = list(cache.glob("lowered/*/*.onnx*"))
    assert lowered
    assert {stat.S_IMODE(path.stat().st_mode) for path in lowered} == {0o600}


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
import isorun
try:
    isorun.Session(sys.argv[1], "ort-cpu")
except isorun.IsorunError as error:
    print(error)
"""


def test_a_missing_onnx_is_reported_with_the_remedy(model, tmp_path):
    command = [sys.executable, "-c", WITHOUT_ONNX, str(model)]
    environment = {"ISORUN_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert "requires onnx, which is not installed" in ran.stdout
    assert "pip install 'isorun[graph]'" in ran.stdout


@pytest.mark.parametrize(("backend", "precision"), [("ort-cpu", "fp32"), ("reference", "fp16")])
def test_an_application_may_have_numpy_raise_errors(bert, backend, precision):
    """Small numbers that become 0 are no error."""
    feeds = tiny.feeds(3, 9)
    feeds["attention_mask"] = np.tril(np.ones_like(feeds["attention_mask"]))
    arguments = {"backend": backend, "precision": precision, "cache_dir": False}
    with isorun.Session(bert, **arguments) as session:
        expected = session.run(None, feeds)
    with np.errstate(all="raise"), isorun.Session(bert, **arguments) as session:
        results = session.run(None, feeds)
    for array, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(array, wanted)
