"""Models in one folder that share their weights."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import small_bert
from isorun.graph.io import files, shared


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.weights.bin"))


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The initializers of a file, read by onnx, which rejects links."""
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_equal_bytes_are_stored_once_whatever_they_are_called(tmp_path: Path) -> None:
    first, second = small_bert.build(), small_bert.build()
    name = next(name for name, value in second.graph.initializers.items() if value.const_value.nbytes > 1024)
    second.graph.initializers[name].name = "renamed"
    shared.write(first, tmp_path / "first.onnx")
    stored = weights(tmp_path)
    shared.write(second, tmp_path / "second.onnx")
    assert weights(tmp_path) == stored
    assert len(stored) == 1
    for model, path in ((first, "first.onnx"), (second, "second.onnx")):
        written = arrays(tmp_path / path)
        for value in model.graph.initializers.values():
            np.testing.assert_array_equal(written[value.name], value.const_value.numpy())
    assert files.read(tmp_path / "second.onnx").graph.initializers["renamed"].const_value is not None


def test_only_other_bytes_are_added(tmp_path: Path) -> None:
    shared.write(small_bert.build(), tmp_path / "first.onnx")
    changed = small_bert.build()
    value = max(changed.graph.initializers.values(), key=lambda value: value.const_value.nbytes)
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name=value.name)
    shared.write(changed, tmp_path / "second.onnx")
    assert len(weights(tmp_path)) == 2
    assert min(path.stat().st_size for path in weights(tmp_path)) == value.const_value.nbytes
    np.testing.assert_array_equal(arrays(tmp_path / "second.onnx")[value.name], value.const_value.numpy())


def test_weights_in_other_files_are_copied_and_small_ones_loaded(tmp_path: Path) -> None:
    outside = small_bert.write(tmp_path / "outside.onnx")
    expected = arrays(outside)
    onnx.save(onnx.load(outside), outside, save_as_external_data=True, location="data.bin", size_threshold=0)
    model = files.read(outside)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    (tmp_path / "inside").mkdir()
    shared.write(model, tmp_path / "inside" / "model.onnx")
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == before
    outside.with_name("data.bin").unlink()
    written = arrays(tmp_path / "inside" / "model.onnx")
    for name, array in expected.items():
        np.testing.assert_array_equal(written[name], array)
    graph = onnx.load(tmp_path / "inside" / "model.onnx", load_external_data=False).graph
    small = [tensor for tensor in graph.initializer if len(written[tensor.name].tobytes()) <= files.INLINE_LIMIT]
    assert small
    assert not any(tensor.external_data for tensor in small)


def test_a_failure_leaves_the_model_and_the_folder_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    model = small_bert.build()
    before = [value.const_value for value in model.graph.initializers.values()]
    monkeypatch.setattr(files, "serialized", fail)
    with pytest.raises(OSError, match="No space left"):
        shared.write(model, tmp_path / "model.onnx")
    assert [value.const_value for value in model.graph.initializers.values()] == before
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "model.onnx").exists()
