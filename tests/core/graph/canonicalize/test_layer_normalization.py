"""Decomposed layer normalizations are recognized by what they compute, and only those."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import isorun
from isorun.graph.canonicalize import layer_normalization
from written_encoders import VOCABULARY, begun

WIDTH = 8192  # the two deviations differ by 6e-5 of their value there


def model_of(count: int) -> ir.Model:
    """(x - mean) / sqrt(mean square * width / count + epsilon) * weight + bias."""
    header = f"g (float[N, S, {WIDTH}] x) => (float[N, S, {WIDTH}] y)"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    {header} <float epsilon = {{0.00001}}, float factor = {{{WIDTH / count:.9}}}> {{
        m = ReduceMean <axes = [-1]> (x)
        d = Sub (x, m)
        s = Mul (d, d)
        a = ReduceMean <axes = [-1]> (s)
        v = Mul (a, factor)
        e = Add (v, epsilon)
        r = Sqrt (e)
        q = Div (d, r)
        w = Mul (q, weight)
        y = Add (w, bias)
    }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name in ("weight", "bias"):
        array = random.normal(size=WIDTH).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.serde.deserialize_model(model)


@pytest.mark.parametrize(("count", "expected"), [(WIDTH, True), (WIDTH - 1, False)])
def test_a_deviation_of_a_sample_is_another(count: int, expected: bool) -> None:
    model = model_of(count)
    layer_normalization.fuse(model)
    assert ("LayerNormalization" in {node.op_type for node in model.graph}) is expected


@pytest.mark.parametrize("inner", [None, 1e-12])
@pytest.mark.parametrize("deviation", [1.0, 1e-4, 1e-6])
def test_an_epsilon_outside_the_root_is_another_one(deviation: float, inner: float | None) -> None:
    graph, ids, mask = begun()
    x = graph.node("Gather", graph.weight(VOCABULARY, 16, scale=deviation), ids)
    centered = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1], keepdims=1))
    variance = graph.node("ReduceMean", graph.node("Mul", centered, centered), axes=[-1], keepdims=1)
    root = graph.node("Sqrt", variance if inner is None else graph.node("Add", variance, inner))
    unit = graph.node("Div", centered, graph.node("Add", root, 1e-10))
    hidden = graph.node("Mul", unit, graph.constant(np.linspace(0.5, 1.5, 16).astype(np.float32)))
    graph.output(graph.layer(hidden, graph.adding(graph.mask(mask))), "hidden", "B", "S", 16)
    model, feeds = graph.model(), {"input_ids": np.arange(1, 13)[None], "attention_mask": np.ones((1, 12), np.int64)}
    (expected,) = exports.run(model, feeds, optimized=False)
    with isorun.Session(model, "ort-cpu") as session:
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5)
