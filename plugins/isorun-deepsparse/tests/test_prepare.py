"""The private copy: folded constants, the same outputs, removed afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from isorun.models import lowering
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun_conformance.sample_models import encoder
from isorun_deepsparse.prepare import prepare, private_copy

SHAPE = (2, 7)
OTHERS_OPERATORS = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N, 4] x) => (float[N, 4] y) { y = com.microsoft.Gelu (x) }"""


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    cache = Cache(folder / "cache")
    model = encoder("bert-2x32", dynamic=False, shape=SHAPE).path(folder)
    return lowering.ModelGraphs(models.open_model(model, cache), cache).lower(("primitive",)).path


def test_copy_has_folded_constants(lowered: Path, tmp_path: Path) -> None:
    model = onnx.load(str(prepare(lowered, tmp_path)))
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"Shape", "Range", "Concat", "Split", "ConstantOfShape", "Constant"}
    assert {"MatMul", "Softmax", "Erf"} <= kinds
    assert "Gemm" not in kinds
    assert model.ir_version <= 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]


def test_copy_computes_the_same(lowered: Path, tmp_path: Path) -> None:
    feeds = encoder("bert-2x32", dynamic=False, shape=SHAPE).feeds()
    copy = prepare(lowered, tmp_path)
    outputs, expected = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
        for path in (copy, lowered)
    )
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=0, atol=2e-6)


def test_source_is_unchanged_and_copy_is_removed(lowered: Path) -> None:
    before = {path: path.read_bytes() for path in lowered.parent.iterdir()}
    with private_copy(lowered) as copy:
        assert copy.is_file()
        assert copy.parent != lowered.parent
        copy.write_bytes(b"as DeepSparse does")
    assert not copy.parent.exists()
    assert {path: path.read_bytes() for path in lowered.parent.iterdir()} == before


def test_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x0a not a model")
    with pytest.raises(Exception, match="Protobuf"), private_copy(damaged):
        pytest.fail("there is no copy")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_operators_of_other_domains_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(OTHERS_OPERATORS), source)
    (tmp_path / "copy").mkdir()
    copy = onnx.load(str(prepare(source, tmp_path / "copy")))
    assert [(node.domain, node.op_type) for node in copy.graph.node] == [("com.microsoft", "Gelu")]
    assert "com.microsoft" in {opset.domain for opset in copy.opset_import}
