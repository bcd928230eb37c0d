"""Weights that PyTorch pickled: every type and layout, and nothing in a file is run."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isorun
from archives import unpack
from isorun.errors import InvalidModel
from isorun.models.pickled_weights import PickledTensors
from isorun.models.weights import SafeTensors, weight_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``make_pickled.py``."""
    return unpack("pickled", tmp_path_factory.mktemp("pickled"))


def _write(path: Path, content: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for key, storage in storages.items():
            archive.writestr(f"archive/data/{key.removeprefix('_')}", storage)
    return path


def test_reads_every_type_and_layout(folder: Path) -> None:
    opened = PickledTensors(folder / "tensors.pt")
    expected = np.load(folder / "tensors.npz")
    assert {*opened.keys()} == {*expected}
    for name in expected:
        tensor = opened.get_tensor(name)
        assert (tensor.shape, tensor.dtype) == (expected[name].shape, expected[name].dtype), name
        np.testing.assert_array_equal(tensor, expected[name])
        assert tuple(opened.get_slice(name).get_shape()) == tensor.shape
    assert [opened.get_slice(name).get_dtype() for name in ("bfloat16", "int8", "bool")] == ["BF16", "I8", "BOOL"]


def test_a_checkpoint_may_be_pickled(folder: Path) -> None:
    assert [path.name for path in weight_files(folder / "model")] == ["pytorch_model.bin"]
    assert SafeTensors(folder / "model", "bert").stores("F16")
    with isorun.Embedder(folder / "model", backend="ort-cpu") as embedder:
        texts = ["My name is Sarah and I live in London.", "Hugging Face is a company based in New York City!"]
        np.testing.assert_allclose(embedder.embed(texts), np.load(folder / "model" / "expected.npy")[:2], atol=1e-5)


def test_safetensors_come_first(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in weight_files(tmp_path)] == ["model.safetensors"]


def test_names_the_format_before_pytorch_1_6(folder: Path) -> None:
    with pytest.raises(InvalidModel, match=r"1\.6.*safetensors"):
        PickledTensors(folder / "legacy.pt")


class _Hostile:
    """Runs a command when it is unpickled as usual."""

    def __init__(self, path: Path) -> None:
        self._command = f"touch {path}"

    def __reduce__(self) -> Any:
        return (os.system, (self._command,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_file_is_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = _write(tmp_path / "model.bin", pickle.dumps({"weight": _Hostile(mark)}, protocol))
    with pytest.raises(InvalidModel, match=r"system, which is not part of a tensor"):
        PickledTensors(path)
    assert not mark.exists()


def _tensor(size: int = 4, offset: int = 0, shape: Any = (4,), strides: Any = (1,), key: str = "0") -> bytes:
    """A pickle as PyTorch writes it."""

    def plain(value: Any) -> bytes:
        return pickle.dumps(value, 2)[2:-1]  # without the protocol and the end

    storage = b"(" + plain("storage") + b"ctorch\nFloatStorage\n" + plain(key) + plain("cpu") + plain(size) + b"tQ"
    layout = plain(offset) + plain(shape) + plain(strides) + plain(False) + plain(None)
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + layout + b"tR"
    return b"\x80\x02}" + plain("weight") + tensor + b"s."


def test_reads_what_the_tests_write(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    path = _write(tmp_path / "model.bin", _tensor(shape=(2, 2), strides=(1, 2)), _0=values.tobytes())
    np.testing.assert_array_equal(PickledTensors(path).get_tensor("weight"), values.reshape(2, 2).T)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (5,)},
        {"offset": 1},
        {"offset": -1},
        {"shape": (-1,)},
        {"strides": (2,)},
        {"strides": (1, 1)},
        {"shape": (1 << 40,), "strides": (0,)},
        {"shape": ("4",)},
        {"size": -4},
    ],
)
def test_rejects_tensors_outside_their_storage(changes: dict[str, Any], tmp_path: Path) -> None:
    path = _write(tmp_path / "model.bin", _tensor(**changes), _0=bytes(16))
    with pytest.raises(InvalidModel, match="cannot be read"):
        PickledTensors(path)


@pytest.mark.parametrize("storages", [{}, {"_0": bytes(15)}])
def test_rejects_missing_and_short_storages(storages: dict[str, bytes], tmp_path: Path) -> None:
    opened = PickledTensors(_write(tmp_path / "model.bin", _tensor(), **storages))
    with pytest.raises(InvalidModel, match="'weight' cannot be read"):
        opened.get_tensor("weight")


def test_rejects_a_compressed_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", _tensor())
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(InvalidModel, match="compressed"):
        PickledTensors(tmp_path / "model.bin")


@pytest.mark.parametrize("content", [pickle.dumps([1]), pickle.dumps({1: 2}), b"", b"\x80\x04", b"no pickle"])
def test_rejects_other_content(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel):
        PickledTensors(_write(tmp_path / "model.bin", content))


@given(position=st.integers(0, 399), byte=st.integers(0, 255))
def test_damage_is_an_error_of_the_model(position: int, byte: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(_tensor())
    content[position % len(content)] = byte
    path = _write(tmp_path_factory.getbasetemp() / "damaged.bin", bytes(content), _0=bytes(16))
    try:
        opened = PickledTensors(path)
        sizes = [opened.get_tensor(name).size for name in opened.keys()]  # noqa: SIM118 (not a mapping)
    except InvalidModel:
        sizes = []
    assert all(size <= 16 for size in sizes)  # as many as the bytes of the storage
