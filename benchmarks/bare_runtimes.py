"""The bare runtimes on the CPU, with the threads and the precision that isorun would set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isorun.system.threads import usable_cores

Run = Callable[[dict[str, np.ndarray]], Any]


def open_onnxruntime(path: Path, threads: int | None = None) -> Any:
    """A session, by default on all usable cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or usable_cores()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def open_openvino(
    path: Path, threads: int | None = None, precision: str = "f32", outputs: Sequence[str] | None = None
) -> Any:
    """A compiled model, of some outputs if they are named."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    if outputs is not None:
        results = [result for result in model.get_results() if result.input_value(0).names.intersection(outputs)]
        model = openvino.Model(results, model.get_parameters(), "part")
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads or usable_cores(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    return core.compile_model(model, "CPU", properties)


def openvino_run(compiled: Any) -> Run:
    """Runs a compiled model without copying feeds."""
    request = compiled.create_infer_request()
    return lambda feeds: request.infer(feeds, share_inputs=True)
