"""What is called, and how it is timed, in overhead.py and overhead_worker.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare_runtimes as bare
import numpy as np
import onnx
from onnx import TensorProto, helper

RNG = np.random.default_rng(0)


def addition(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """y = a + b + c, each (1, 128) float32."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"])

    nodes = [helper.make_node("Add", ["a", "b"], ["ab"]), helper.make_node("Add", ["ab", "c"], ["y"])]
    graph = helper.make_graph(nodes, "addition", [value(name) for name in "abc"], [value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = folder / "addition.onnx"
    onnx.save(model, path)
    return path, {name: RNG.standard_normal((1, 128), dtype=np.float32) for name in "abc"}


def raw_onnxruntime(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")  # as isorun has it: two pools, alternating
    session = onnxruntime.InferenceSession(
        str(model), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
    )
    return lambda feeds: session.run(None, feeds)


def raw_openvino(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    return bare.openvino_run(bare.open_openvino(model, threads))


RAW = {"ort-cpu": raw_onnxruntime, "openvino": raw_openvino}


def interleaved(calls: dict[str, Callable[[Any], Any]], feeds: Any, rounds: int, turn: int = 1) -> dict[str, float]:
    """The median of each call's time in microseconds, the first tenth thrown away. A turn is so many calls."""
    durations: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(rounds // turn):
        for name, call in calls.items():
            for _ in range(turn):
                start = time.perf_counter_ns()
                call(feeds)
                durations[name].append(time.perf_counter_ns() - start)
    return {name: statistics.median(times[rounds // 10 :]) / 1000 for name, times in durations.items()}
