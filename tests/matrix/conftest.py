from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAKES = Path(__file__).parent / "fakes"
Isorun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(cache_dir: Path) -> dict[str, str]:
    """The environment of a command: a cache of the tests' own, and the fake backends beside the real ones."""
    path = os.pathsep.join(filter(None, [str(FAKES), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "ISORUN_CACHE_DIR": str(cache_dir), "COLUMNS": "80"}


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-c", "import sys; from isorun.cli import main; sys.exit(main())", "matrix"]


@pytest.fixture
def isorun(command: list[str], environment: dict[str, str]) -> Isorun:
    """Run ``isorun matrix`` with arguments."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model of one embedding: hidden states and their mean over real tokens."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["last_hidden_state", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "middle"], ["count"], keepdims=0),
        helper.make_node("Max", ["count", "one"], ["least"]),
        helper.make_node("Div", ["sum", "least"], ["pooled"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", 4]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", 4]),
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "middle"),
            numpy_helper.from_array(np.array(1, dtype=np.float32), "one"),
        ],
    )
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path
