"""What people try first, and the answers that lead on."""

from pathlib import Path

import numpy as np
import pytest

import isorun
from isorun.system.cache import Cache


@pytest.mark.parametrize(
    ("name", "meant"),
    [("CPUExecutionProvider", "ort-cpu"), ("onnxruntime", "ort-cpu"), ("CUDAExecutionProvider", "ort-cuda")],
)
def test_names_of_onnx_runtime_lead_to_a_backend(bert: Path, name: str, meant: str) -> None:
    with pytest.raises(isorun.BackendNotFound, match=f"did you mean '{meant}'"):
        isorun.Session(bert, backend=name)


@pytest.mark.parametrize(
    ("name", "content", "answer"),
    [
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}", "weights of a checkpoint.*Pass its folder"),
        ("model.pt", b"PK\x03\x04more", "a file of PyTorch.*torch.onnx.export"),
        ("model.onnx", b"PK\x03\x04more", "a zip archive.*Unpack it"),
        ("model.onnx", b"\x18\x00\x00\x00ORTM", "ONNX Runtime's own format.*Pass the .onnx file"),
    ],
)
def test_files_of_other_formats_are_named(tmp_path: Path, name: str, content: bytes, answer: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(isorun.InvalidModel, match=answer):
        isorun.Session(tmp_path / name)


def test_an_address_is_no_path() -> None:
    with pytest.raises(isorun.InvalidModel, match="not downloaded from addresses"):
        isorun.Session("https://example.org/model.onnx")


def test_session_accepts_a_short_name(minilm: Path, minilm_cache: Cache) -> None:
    with isorun.Session("all-MiniLM-L6-v2", backend="ort-cpu", cache_dir=minilm_cache.root) as session:
        feeds = {declared.name: np.ones((1, 4), np.int64) for declared in session.get_inputs()}
        assert session.run(None, feeds)[0].shape[-1] == 384


def test_a_closed_session_has_an_error_of_its_own(bert: Path) -> None:
    session = isorun.Session(bert, backend="ort-cpu")
    session.close()
    with pytest.raises(isorun.SessionClosed, match="Open another"):
        session.io_binding()


def test_provenance_is_short_and_names_what_was_skipped(bert: Path) -> None:
    with isorun.Session(bert, backend=["ort-openvino", "ort-cpu"]) as session:
        text, skipped = str(session.provenance), session.provenance.skipped
    assert [name for name, _ in skipped] == ["ort-openvino"]
    assert "skipped      ort-openvino (provenance.skipped says why)" in text
    assert "uninstall" not in text
    assert len(text.splitlines()) <= 8


def test_the_warning_about_truncation_is_public() -> None:
    assert issubclass(isorun.TruncationWarning, UserWarning)
