"""One session, one model: files that are replaced, cache entries in the wrong place, rot, clearing."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import isorun
import small_bert
from cache_damage import replace_in_place
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import InvalidModel
from isorun.models.source import open_model
from isorun.plugin.backend import Executable
from isorun.system.cache import Cache, maintenance
from isorun.types import CompileConfig, LoweredModel
from isorun_backends.onnxruntime.cpu import OrtCpu

FULL = small_bert.feeds(np.ones((4, 6), np.int64))
PADDED = small_bert.feeds(np.array([[1] * 6, [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0] * 6]))


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models whose files are of one size."""
    folder = tmp_path_factory.mktemp("versions")
    first = small_bert.write(folder / "one.onnx", num_hidden_layers=1)
    model = onnx.load(first)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.frombuffer(tensor.raw_data, np.float32)
            tensor.raw_data = (values * np.float32(0.5)).tobytes()
    onnx.save(model, folder / "two.onnx")
    onnx.save(onnx.load(first), first)
    assert first.stat().st_size == (folder / "two.onnx").stat().st_size
    return first, folder / "two.onnx"


def run(path: Path, cache: Path, feeds: dict[str, np.ndarray] = FULL, **arguments: object) -> np.ndarray:
    with isorun.Session(path, "ort-cpu", cache_dir=cache, **arguments) as session:
        return session.run(None, feeds)[0]


@pytest.fixture(scope="module")
def expected(versions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The hidden states of both, not padded, and of the first padded."""
    cache = tmp_path_factory.mktemp("expected")
    results = [run(path, cache) for path in versions] + [run(versions[0], cache, PADDED)]
    assert np.abs(results[0] - results[1]).max() > 0.01
    return results


def test_a_session_keeps_its_model_when_the_file_is_replaced_before_the_first_padded_batch(
    versions, expected, tmp_path
):
    path = tmp_path / "model.onnx"
    path.write_bytes(versions[0].read_bytes())
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path / "cache") as session:
        replace_in_place(path, versions[1].read_bytes())
        np.testing.assert_allclose(session.run(None, PADDED)[0], expected[2], atol=1e-5)
        assert session.provenance.details["padding"]["removed"] == "from batches that have enough of it"
    np.testing.assert_allclose(run(path, tmp_path / "cache"), expected[1])


def test_a_model_that_is_replaced_while_the_runtime_loads_it_is_an_error(tmp_path):
    """A model that is no encoder goes to the runtime as it is."""
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = %s (x) }'
    path = tmp_path / "model.onnx"
    contents = [onnx.parser.parse_model(text % name).SerializeToString() for name in ("Neg", "Abs")]
    path.write_bytes(contents[0])

    class Late(OrtCpu):
        def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
            replace_in_place(path, contents[1])
            return super().compile(model, config)

    cache = Cache(tmp_path / "cache")
    with pytest.raises(InvalidModel, match="changed since it was opened"):
        Compiler(open_model(path, cache), Options(), cache).compile(Late("ort-cpu"), CompileConfig("fp32", "cpu", 1))


def test_clearing_leaves_what_an_open_session_uses(versions, expected, tmp_path):
    cache = Cache(tmp_path / "cache")
    with isorun.Session(versions[0], "ort-cpu", cache_dir=cache.root) as session:
        assert {path.parent.name for path in maintenance.clear(cache.root)} == {"models", "lowered"}
        np.testing.assert_allclose(session.run(None, PADDED)[0], expected[2], atol=1e-5)
    assert maintenance.clear(cache.root) == {}
