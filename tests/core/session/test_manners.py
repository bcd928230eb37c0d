"""What a session says and leaves behind."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import isorun
import small_bert


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
