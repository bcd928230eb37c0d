"""Decomposed layer normalizations are recognized by what they compute, and only those."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from isorun.graph.canonicalize import layer_normalization

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
