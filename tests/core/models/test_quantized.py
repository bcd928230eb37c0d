"""Models that are pruned and quantized before they are opened, as oBERT's are published, run unchanged.

Here, an export is pruned in blocks of 4, then quantized by ONNX Runtime's tool or into the forms of SparseML and NNCF.
Sessions must return what the bare runtimes return or, without VNNI, where those saturate, the reference evaluator.
"""

import logging
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime.quantization as tool
import openvino
import pytest

import exports
import quantized_forms
from isorun import BackendUnavailable, Session, UnsupportedModel
from isorun.graph.inspect import inspect
from isorun.plugin import has_vnni
from isorun_deepsparse.prune import prune

SPARSITY = 0.8
FORMS = {
    "sparseml-int8": partial(quantized_forms.sparseml, weights=np.int8),
    "sparseml-uint8": partial(quantized_forms.sparseml, weights=np.uint8),
    "nncf": quantized_forms.nncf,
}


class Calibration(tool.CalibrationDataReader):
    def __init__(self, label: str) -> None:
        self._left = [exports.given(label), exports.given(label, length=9)]

    def get_next(self) -> exports.Feeds | None:
        return self._left.pop() if self._left else None


@pytest.fixture(
    scope="module", params=["bert-torchscript17-eager", pytest.param("bert-tf2onnx17", marks=pytest.mark.long)]
)
def pruned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An export's label, and its file with the dense layers pruned."""
    model = exports.model(request.param)
    prune(model, SPARSITY, "block4", layers=["*"])
    path = tmp_path_factory.mktemp("pruned") / "pruned.onnx"
    ir.save(model, path)
    return request.param, path


@pytest.fixture(
    scope="module",
    params=["qdq", "integer", "sparseml-int8", pytest.param("sparseml-uint8", marks=pytest.mark.long), "nncf"],
)
def quantized(request: pytest.FixtureRequest, pruned: tuple[str, Path]) -> tuple[str, Path]:
    """The same with dense layers and embeddings quantized: Q and DQ with per-channel weights, or MatMulInteger."""
    chosen, source = pruned
    path = source.with_name(f"{request.param}.onnx")
    if request.param in FORMS:
        feeds = [exports.given(chosen), exports.given(chosen, length=9)]
        onnx.save(FORMS[request.param](onnx.load(source), feeds), path)
        return chosen, path
    logging.disable(logging.WARNING)  # it recommends optimizing the model first
    try:
        if request.param == "qdq":
            tool.quantize_static(
                source,
                path,
                Calibration(chosen),
                quant_format=tool.QuantFormat.QDQ,
                op_types_to_quantize=["MatMul", "Gemm", "Gather"],
                per_channel=True,
                weight_type=tool.QuantType.QInt8,
                activation_type=tool.QuantType.QUInt8,
            )
        else:
            tool.quantize_dynamic(source, path, op_types_to_quantize=["MatMul", "Gemm"])
    finally:
        logging.disable(logging.NOTSET)
    return chosen, path


def expected(backend: str, path: Path, feeds: exports.Feeds) -> list[np.ndarray]:
    if not has_vnni():
        with Session(path, "reference") as session:
            return session.run(None, feeds)
    if backend == "ort-cpu":
        return exports.run(path.read_bytes(), feeds)
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answers = compiled(feeds)
    return [answers[output].copy() for output in compiled.outputs]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_a_session_agrees_with_the_graph(quantized: tuple[str, Path], backend: str):
    label, path = quantized
    tolerance = 1e-5 if has_vnni() or backend == "ort-cpu" else 0.1  # a step of some integers
    feeds = exports.given(label)
    with Session(path, backend) as session:
        results = session.run(None, feeds)
        assert session.provenance.fused == {}
    assert exports.difference(expected(backend, path, feeds), results) < tolerance


def test_inspection_reports_pruned_8_bit_weights(quantized: tuple[str, Path]):
    if quantized[1].stem == "nncf":
        pytest.skip("its weights are stored in fp32, followed by Q and DQ")
    layers = [layer for layer in inspect(quantized[1]).layers if layer.kind == "dense"]
    quantized_layers = [layer for layer in layers if layer.precision in ("int8", "uint8")]
    assert len(quantized_layers) >= 6 * 3
    for layer in quantized_layers:
        assert layer.sparsity >= SPARSITY - 0.01
        assert layer.pattern == "block4"


def test_rejects_padding_removal(quantized: tuple[str, Path]):
    with pytest.raises(UnsupportedModel, match="no SelfAttention of the fused form"):
        Session(quantized[1], "ort-cpu", padding="remove")


def test_precision_int8_runs_the_model_as_given(quantized: tuple[str, Path]):
    label, path = quantized
    feeds = exports.given(label)
    with Session(path, "ort-cpu", precision="int8") as session:
        results = session.run(None, feeds)
        assert "int8" in session.provenance.precision.split("+")
    assert exports.difference(expected("ort-cpu", path, feeds), results) < 1e-5


@pytest.mark.skipif(not has_vnni(), reason="without VNNI, openvino computes such models in fp32")
def test_openvino_runs_q_and_dq_in_int8_and_rejects_other_forms(quantized: tuple[str, Path]):
    if quantized[1].stem in ("qdq", "nncf"):
        with Session(quantized[1], "openvino", precision="int8") as session:
            assert "int8" in session.provenance.precision.split("+")
    else:
        with pytest.raises(BackendUnavailable, match=r"quantized .*(bf16|fp32)") as caught:
            Session(quantized[1], "openvino", precision="int8")
        assert "precision='fp32'" in caught.value.remedy
