"""Which values are added to scores."""

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


@pytest.mark.parametrize("shape", [(3, 8), (2, 8, 8), (2, 1, 4, 8, 8)])
def test_a_mask_by_position_in_another_shape_is_not_fused(shape: tuple[int, ...]) -> None:
    """For queries that are learned, for each head, or for windows of an image."""
    graph = ir.serde.deserialize_model(onnx_text.graph("g (int64[b,8] ids) => (int64[b,8] y) { y = Neg(ids) }")).graph
    heads = np.arange(np.prod(shape[:-2], dtype=int)).reshape(*shape[:-2], 1, 1)
    array = np.where(np.arange(8) > np.arange(shape[-2])[:, None] + heads, -1e9, 0).astype(np.float32)
    value = ir.Value(name="c", const_value=ir.tensor(array), type=ir.TensorType(ir.DataType.FLOAT))
    with pytest.raises(CannotFuse, match="masks by position"):
        MaskClassifier(Probes(graph)).terms(value, lambda batch, length: {})


def test_a_mask_for_learned_queries_is_not_fused() -> None:
    """Of Perceiver, whose queries are not the tokens of the keys."""
    graph = ir.serde.deserialize_model(
        onnx_text.graph(
            "g (int64[b, s] mask) => (float[b, 1, 3, s] y) "
            "<int64[2] axes = {1, 2}, int64[4] sizes = {1, 1, 3, 1}, float lowest = {-1e9}, float zero = {0}> "
            "{ wide = Unsqueeze (mask, axes) each = Expand (wide, sizes) is_key = Cast <to = 9> (each) "
            "y = Where (is_key, zero, lowest) }"
        )
    ).graph
    with pytest.raises(CannotFuse, match="is not a key mask"):
        MaskClassifier(Probes(graph)).terms(graph.outputs[0], lambda batch, length: {})
