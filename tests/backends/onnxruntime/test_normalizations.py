"""Layer normalizations in single steps, and what only looks like them."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import isorun

WIDTH = 8
Array = np.ndarray
STEPS = (
    "m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, p) v = ReduceMean <axes = [-1]> (q) a = Add (v, e) "
    "s = Sqrt (a) n = Div (d, s) w = Mul (n, gamma) y = Add (w, beta)"
)
SPREAD = np.linspace(0.5, 4, WIDTH, dtype=np.float32)


def normal(x: Array, power: float = 2, epsilon: float | Array = 0.25) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**power).mean(-1, keepdims=True) + epsilon)


CASES: dict[str, tuple[str, str, Callable[[Array], Array]]] = {
    "a normalization": (STEPS, "float p = {2}, float e = {0.25}", normal),
    "fourth powers": (STEPS, "float p = {4}, float e = {0.25}", lambda x: normal(x, power=4)),
    "the value subtracted from the mean": (
        *(STEPS.replace("Sub (x, m)", "Sub (m, x)"), "float p = {2}, float e = {0.25}"),
        lambda x: -normal(x),
    ),
    "an epsilon for each dimension": (
        *(STEPS, f"float p = {{2}}, float[{WIDTH}] e = {{{', '.join(map(str, SPREAD))}}}"),
        lambda x: normal(x, epsilon=SPREAD),
    ),
    "the deviation divided": (
        *(STEPS.replace("Div (d, s)", "Div (s, d)"), "float p = {2}, float e = {0.25}"),
        lambda x: 1 / normal(x),
    ),
}


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("label", CASES)
def test_computes_what_the_steps_say(label: str, backend: str) -> None:
    """ONNX Runtime's optimizers make one normalization of them all (1.31.1)."""
    steps, constants, formula = CASES[label]
    gamma = ", ".join(map(str, range(1, WIDTH + 1)))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, S, {WIDTH}] x) => (float[N, S, {WIDTH}] y) '
        f"<{constants}, float[{WIDTH}] gamma = {{{gamma}}}, float[{WIDTH}] beta = {{{gamma}}}> {{ {steps} }}"
    )
    x = np.random.default_rng(0).normal(size=(2, 3, WIDTH)).astype(np.float32)
    with isorun.Session(model.SerializeToString(), backend) as session:
        (result,) = session.run(None, {"x": x})
    weight = np.arange(1, WIDTH + 1, dtype=np.float32)
    np.testing.assert_allclose(result, formula(x) * weight + weight, rtol=2e-4, atol=1e-4)
