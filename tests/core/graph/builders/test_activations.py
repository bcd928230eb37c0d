"""What each activation computes, alone and as a gate."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from isorun.graph.builders import activations
from isorun.graph.builders.builder import Builder
from isorun.graph.io import files
from isorun.session.session import Session

WIDTH = 16
FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "linear": lambda x: x,
}
SAME = {
    **{"gelu_python": "gelu", "swish": "silu"},
    **dict.fromkeys(("gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"), "gelu_new"),
}


class NoWeights:
    def check(self, name: str, shape: tuple[int, ...]) -> None:
        raise AssertionError(name)

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        raise AssertionError(name)


@pytest.mark.parametrize("name", activations.NAMES)
def test_activation_with_and_without_bias_and_as_a_gate(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    values, bias = random.normal(0, 3, (2, 3, WIDTH)).astype(np.float32), random.normal(0, 1, WIDTH).astype(np.float32)
    builder = Builder(NoWeights())
    value = ir.Value(name="value", shape=ir.Shape([2, 3, WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    results = {
        "plain": activations.activated(builder, name, "plain", value, WIDTH),
        "biased": activations.activated(builder, name, "biased", value, WIDTH, builder.constant("bias", bias)),
        "gated": activations.gated(builder, name, "gated", value, value, WIDTH),
    }
    outputs = [builder.output(label, result, 3, WIDTH) for label, result in results.items()]
    files.write(
        builder.graph("activations", {"value": value}, outputs),
        tmp_path / "model.onnx",
    )
    with Session(tmp_path / "model.onnx", backend="ort-cpu") as session:
        plain, biased, gated = session.run(None, {"value": values})
    formula = FORMULAS[SAME.get(name, name)]
    for actual, expected in (
        (plain, formula(values)),
        (biased, formula(values + bias)),
        (gated, formula(values) * values),
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)
