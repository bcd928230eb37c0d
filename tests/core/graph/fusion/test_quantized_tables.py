"""Tables and layers in 8 bits, of opsets in which ONNX's reference implementation lacks ``DequantizeLinear``."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import quantize_dynamic

import exports
import quantized_forms
from isorun import Session
from isorun.graph.pipeline import fuse

EXPORT = "mpnet-torchscript17-eager"


def test_fuses_biases_from_a_quantized_table(tmp_path: Path) -> None:
    onnx.save(exports.proto(EXPORT), tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "tables.onnx", op_types_to_quantize=["Gather"])
    quantized = onnx.load(tmp_path / "tables.onnx")
    expected = exports.run(quantized.SerializeToString(), exports.given(EXPORT))
    model = ir.serde.deserialize_model(quantized)
    assert not fuse(model).refusals
    assert exports.difference(expected, exports.run(model, exports.given(EXPORT))) < 1e-5


def test_removes_padding_behind_a_quantized_table(tmp_path: Path) -> None:
    onnx.save(exports.proto(EXPORT), tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "tables.onnx", op_types_to_quantize=["Gather"])
    feeds = exports.given(EXPORT)
    (expected, *_) = exports.run(tmp_path / "tables.onnx", feeds)
    with Session(tmp_path / "tables.onnx", "ort-cpu", padding="remove") as session:
        (hidden, *_) = session.run(None, feeds)
    real = feeds["attention_mask"] != 0
    assert np.abs(expected - hidden)[real].max() < 1e-5


@pytest.mark.parametrize(("form", "operator"), [("dynamic", "MatMulInteger"), ("qdq", "MatMul")])
def test_names_the_quantized_layer_before_an_attention(tmp_path: Path, form: str, operator: str) -> None:
    onnx.save(exports.proto(EXPORT), tmp_path / "model.onnx")
    if form == "dynamic":
        quantize_dynamic(tmp_path / "model.onnx", tmp_path / "quantized.onnx", op_types_to_quantize=["MatMul"])
        quantized = onnx.load(tmp_path / "quantized.onnx")
    else:
        quantized = quantized_forms.nncf(exports.proto(EXPORT), [exports.given(EXPORT)])
    refusals = [refusal for refusal in fuse(ir.serde.deserialize_model(quantized)).refusals if "Soft" in refusal.node]
    assert len(refusals) == 3
    assert all("quantized layers compute" in why.reason and operator in why.reason for why in refusals)
