"""The reported precision against the runtime's own profile of executed kernels."""

import json
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime.quantization as tool
import openvino
import pytest

import isorun
import tiny

FEEDS = tiny.feeds(4, 12)
pytestmark = pytest.mark.filterwarnings(
    "ignore::isorun.compilation.calibration.CalibrationWarning"
)  # few samples are enough here
_OPENVINO_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")
_ORT_PRODUCTS = ("MatMul", "Gemm", "Attention")
_SUFFIXES = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
_ORT_TYPES = {"float": "fp32", "double": "fp64", "float16": "fp16", "int8": "int8", "uint8": "int8"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[openvino.CompiledModel]:
    """The models that OpenVINO compiles, in order."""
    models: list[openvino.CompiledModel] = []
    compile_model = openvino.Core.compile_model

    def record(*arguments: object, **keywords: object) -> openvino.CompiledModel:
        models.append(compile_model(*arguments, **keywords))
        return models[-1]

    monkeypatch.setattr(openvino.Core, "compile_model", record)
    return models


def executed_by_openvino(compiled: openvino.CompiledModel) -> set[str]:
    """The precisions of the matrix products that a request executed, by the names of their kernels."""
    request = compiled.create_infer_request()
    request.infer(FEEDS)
    kernels = {
        node.exec_type.rpartition("_")[2].lower()
        for node in request.get_profiling_info()
        if node.node_type in _OPENVINO_PRODUCTS and node.status == node.status.EXECUTED
    }
    assert kernels, "nothing was executed"
    return {_SUFFIXES[kernel] for kernel in kernels}


def executed_by_onnx_runtime(folder: Path) -> set[str]:
    """The narrowest types that matrix products were given, by ONNX Runtime's profile."""
    (written,) = folder.glob("profile*.json")
    precisions = set()
    for event in json.loads(written.read_text(encoding="utf-8")):
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        if any(name in event["args"]["op_name"] for name in _ORT_PRODUCTS):
            read = event["args"]["input_type_shape"]
            read = read[:1] if "NBits" in event["args"]["op_name"] else read  # beside weights of any type
            types = {kind for entry in read for kind in entry} & _ORT_TYPES.keys()
            precisions.add("int8" if types & {"int8", "uint8"} else _ORT_TYPES[types.pop()])
    assert precisions, "nothing was executed"
    return precisions


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_openvino(bert: Path, precision: str, compiled: list[openvino.CompiledModel]) -> None:
    if precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bf16 arithmetic")
    options = {"properties": {"PERF_COUNT": True}}
    samples = [FEEDS] if precision == "int8" else None
    with isorun.Session(
        bert, "openvino", precision=precision, padding="keep", options=options, calibration=samples
    ) as session:
        reported = set(session.provenance.precision.split("+"))
        assert reported == executed_by_openvino(compiled[-1])
    assert precision in reported
    assert precision == "int8" or reported == {precision}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_onnx_runtime(bert: Path, precision: str, tmp_path: Path) -> None:
    options = {"profile_prefix": str(tmp_path / "profile")}
    samples = [FEEDS] if precision == "int8" else None
    with isorun.Session(
        bert, "ort-cpu", precision=precision, padding="keep", options=options, calibration=samples
    ) as session:
        session.run(None, FEEDS)
        reported = set(session.provenance.precision.split("+"))
    assert reported == executed_by_onnx_runtime(tmp_path)
    assert precision in reported
    assert precision == "int8" or reported == {precision}


def test_8_bit_weights_alone_are_not_8_bit_products(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y)
        <float s = {0.5}, int8[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
        { v = DequantizeLinear (w, s) y = MatMul (x, v) }"""
    options = {"profile_prefix": str(tmp_path / "profile")}
    with isorun.Session(onnx.parser.parse_model(text), "ort-cpu", options=options) as session:
        session.run(None, {"x": np.ones((2, 4), np.float32)})
        assert session.provenance.precision == "fp32"
    assert executed_by_onnx_runtime(tmp_path) == {"fp32"}


def test_reports_the_executed_precision_of_a_quantized_model(bert: Path, tmp_path: Path) -> None:
    lowered, quantized = tmp_path / "lowered.onnx", tmp_path / "quantized.onnx"
    from isorun.graph.io import files
    from isorun.graph.ops import lower

    files.write(lower.lower(files.read(bert), "primitive"), lowered)
    tool.quantize_dynamic(lowered, quantized, op_types_to_quantize=["MatMul"])
    options = {"profile_prefix": str(tmp_path / "profile")}
    with isorun.Session(quantized, "ort-cpu", options=options) as session:
        session.run(None, FEEDS)
        reported = set(session.provenance.precision.split("+"))
    assert reported == executed_by_onnx_runtime(tmp_path) == {"fp32", "int8"}


def test_reports_the_executed_nodes_of_a_quantized_model(bert: Path, tmp_path: Path) -> None:
    options = {"profile_prefix": str(tmp_path / "profile")}
    with isorun.Session(
        bert, "ort-cpu", precision="int8", padding="keep", options=options, calibration=[FEEDS]
    ) as session:
        session.run(None, FEEDS)
        counts = session.provenance.operators["CPUExecutionProvider"]
    (written,) = tmp_path.glob("profile*.json")
    events = json.loads(written.read_text(encoding="utf-8"))
    names = [e["args"]["op_name"] for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    assert {name.rpartition(".")[2]: count for name, count in counts.items()} == {n: names.count(n) for n in names}
