"""The copy of a model that DeepSparse gets, written by ONNX Runtime.

DeepSparse writes to its model, so it needs a copy. The copy has folded constants: DeepSparse 1.8.0 passes parts of a
graph that computes shapes or slices weights, or all of it, to the ONNX Runtime inside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isorun.plugin import BackendFailed

_WEIGHTS = "weights.bin"
_NEWEST_IR = 8  # of opset 17; DeepSparse reads up to 9
# Replaces MatMul and Add by Gemm between Reshapes. DeepSparse's own fusion is faster: 8.0 against 12.2 ms for bert-3l
# at 90 %.
_LEFT_OUT = ["MatMulAddFusion"]
_INTEGER_PRODUCTS = ("MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv")


@contextmanager
def private_copy(source: Path) -> Iterator[Path]:
    """A copy in a temporary folder, for building an engine.

    Args:
        source: an ONNX file, which is only read.
    """
    with tempfile.TemporaryDirectory(prefix="isorun-deepsparse-") as folder:
        yield prepare(source, Path(folder))


def prepare(source: Path, folder: Path) -> Path:
    """Write the copy into a folder. The source is only read.

    Args:
        source: an ONNX file.
        folder: an empty one.

    Returns:
        The copy's graph; its weights are beside it.
    """
    import onnx
    import onnxruntime
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession  # what isorun.compat leaves alone

    path = folder / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # standard operators only
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    InferenceSession(str(source), options, ["CPUExecutionProvider"], disabled_optimizers=_LEFT_OUT)

    model = onnx.load(str(path), load_external_data=False)
    used = {node.domain for node in model.graph.node}
    if "com.microsoft" in used - {node.domain for node in onnx.load(str(source), load_external_data=False).graph.node}:
        raise BackendFailed("ONNX Runtime added com.microsoft operators to the copy for DeepSparse")
    for imported in [opset for opset in model.opset_import if opset.domain not in used | {""}]:
        model.opset_import.remove(imported)  # ONNX Runtime lists all domains that it has
    model.ir_version = min(model.ir_version, _NEWEST_IR)
    onnx.save(model, str(path))
    return path


def integer_products(path: Path) -> set[str]:
    """The outputs of a graph's products of 8-bit integers."""
    import onnx

    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return {node.output[0] for node in nodes if node.op_type in _INTEGER_PRODUCTS}
