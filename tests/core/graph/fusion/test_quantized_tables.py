"""Tables in 8 bits, of opsets in which ONNX's reference implementation lacks ``DequantizeLinear``."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnxruntime.quantization import quantize_dynamic

import exports
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
