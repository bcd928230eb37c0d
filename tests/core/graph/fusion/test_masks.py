"""Which values are added to scores."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import onnx_ir as ir
import pytest

import onnx_text
from isorun.graph.fusion.self_attention.masks import Bias, KeyMask, MaskClassifier, require_masking
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse


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


@pytest.mark.parametrize(
    ("masked", "read", "factor"),
    [(-1e4, -1e4, 1.0), (-1e4, -5e3, 0.5), (-1e4, -6e3, None), (-1e4, 0.0, None), (1e4, -1e4, None), (0.0, -1e4, None)],
)
def test_a_mask_that_is_turned_or_lost_before_the_scores_are_read(
    masked: float, read: float, factor: float | None
) -> None:
    attend = np.array([[1, 1, 0, 0]])
    scores = np.random.default_rng(0).uniform(-1, 1, (1, 2, 4, 4))
    scores[..., 2:] = read
    with ExitStack() as stack:
        if factor is None:
            stack.enter_context(pytest.raises(CannotFuse))
        assert require_masking(KeyMask(None, masked), scores, attend) == factor
