"""Which values are added to scores."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnx_text
from isorun.graph.fusion.self_attention.masks import Bias, MaskClassifier
from isorun.graph.matching.probes import Probes


@pytest.mark.parametrize(
    ("shape", "is_bias"), [((2, 8, 8), True), ((2, 1, 8), True), ((2, 3, 8), False), ((2, 8, 3), False)]
)
def test_a_table_with_as_many_rows_as_tokens_is_no_bias(shape: tuple[int, ...], is_bias: bool) -> None:
    """DeBERTa-v2 multiplies queries by a table (N, d, P): in an export for P tokens it ends in their number."""
    graph = ir.serde.deserialize_model(onnx_text.graph("g (int64[b,8] ids) => (int64[b,8] y) { y = Neg(ids) }")).graph
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    value = ir.Value(name="c", const_value=ir.tensor(array), type=ir.TensorType(ir.DataType.FLOAT))
    terms = MaskClassifier(Probes(graph)).terms(value, lambda batch, length: {})
    assert terms == ([Bias(value)] if is_bias else [])
