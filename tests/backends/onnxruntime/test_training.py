"""Batch normalizations in training mode, which ONNX Runtime computes with what it overwrites."""

import numpy as np
import onnx
import pytest

import isorun
import onnx_text

WEIGHTS = "float[3] a = {1, 2, 3}, float[3] b = {0.5, 0, -1}"
MEAN, VARIANCE = np.array([1, 2, 3], np.float32), np.array([2, 3, 4], np.float32)


def normalized(x: np.ndarray, epsilon: float) -> np.ndarray:
    channels = np.moveaxis(x, 1, -1).astype(np.float64)
    axes = tuple(range(x.ndim - 1))
    unscaled = (channels - channels.mean(axes)) / np.sqrt(channels.var(axes) + epsilon)
    return np.moveaxis(unscaled * [1, 2, 3] + [0.5, 0, -1], -1, 1)


@pytest.mark.parametrize("outputs", ["y", "y, p, q", 'y, "", ""', 'y, "", q'])
@pytest.mark.parametrize(("sizes", "shape"), [("n, 3", (4, 3)), ("n, 3, 2", (4, 3, 2)), ("n, 3, h, w", (2, 3, 4, 5))])
def test_every_run_normalizes_by_its_own_batch(outputs: str, sizes: str, shape: tuple[int, ...]) -> None:
    model = onnx_text.graph(
        f"g (float[{sizes}] x, float[3] m, float[3] v) => (float[{sizes}] y) <{WEIGHTS}> "
        f"{{ {outputs} = BatchNormalization <training_mode = 1, epsilon = 0.25> (x, a, b, m, v) }}"
    )
    feeds = {"m": MEAN.copy(), "v": VARIANCE.copy()}
    with isorun.Session(model, "ort-cpu") as session:
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal(shape, np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x, **feeds})[0], normalized(x, 0.25), atol=1e-5)
    np.testing.assert_array_equal(feeds["m"], MEAN)
    np.testing.assert_array_equal(feeds["v"], VARIANCE)


def training_model(outputs: str, nodes: str) -> onnx.ModelProto:
    return onnx_text.graph(
        f"g (float[n, 3] x) => (float[n, 3] y{outputs}) <{WEIGHTS}, float[3] m = {{1, 2, 3}}, float[3] v = {{2, 3, 4}}>"
        f" {{ y, p, q = BatchNormalization <training_mode = 1> (x, a, b, m, v) {nodes} }}"
    )


def test_updated_statistics_are_outputs() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    with isorun.Session(training_model(", float[3] p, float[3] q", ""), "ort-cpu") as session:
        for _ in range(2):
            y, mean, variance = session.run(None, {"x": x})
            np.testing.assert_allclose(y, normalized(x, 1e-5), atol=1e-4)
            np.testing.assert_allclose(mean, 0.9 * MEAN + 0.1 * x.mean(0), atol=1e-6)
            np.testing.assert_allclose(variance, 0.9 * VARIANCE + 0.1 * x.var(0), atol=1e-6)


@pytest.mark.parametrize(("outputs", "nodes"), [(", float[3] s", "s = Neg (p)"), (", float[3] q", "")])
def test_rejects_statistics_that_would_be_overwritten(outputs: str, nodes: str) -> None:
    with pytest.raises(isorun.UnsupportedModel, match="updated mean or variance is read"):
        isorun.Session(training_model(outputs, nodes), "ort-cpu")
