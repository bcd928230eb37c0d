"""What only looks like an encoder, or like one of its parts: it is left as it is, with the reason."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

import exports
from rewrites import LAYERS, PLAIN, before, check, dense, feeds, first, number, put, use

DECOMPOSED = "bert-torchscript14-eager"


def softmax(model: ir.Model) -> ir.Node:
    return first(model, "Softmax")


def causal(model: ir.Model) -> None:
    """Queries see no later key."""
    at = softmax(model)
    shape = put(at, "Shape", at.inputs[0], start=2)
    full = put(at, "ConstantOfShape", shape, value=ir.tensor(np.full(1, -1e9, np.float32)))
    before(at, 0, "Add", put(at, "Trilu", full, number(model, "above", 1, np.int64), upper=1))


def window(model: ir.Model) -> None:
    """Queries see keys at most 20 away: no sample as short as the others shows that."""
    at = softmax(model)
    length = put(at, "Squeeze", put(at, "Shape", model.graph.inputs[0], start=1, end=2))
    row = put(at, "Range", number(model, "zero", 0, np.int64), length, number(model, "one", 1, np.int64))
    behind = put(at, "Sub", row, put(at, "Unsqueeze", row, number(model, "last", [1], np.int64)))
    is_far = put(at, "Greater", put(at, "Abs", behind), number(model, "reach", 20, np.int64))
    before(at, 0, "Add", put(at, "Where", is_far, number(model, "out", -1e9), number(model, "in", 0.0)))


def four_dimensions(model: ir.Model) -> None:
    """A mask of one's own for each query, as an input."""
    shape = ir.Shape(["batch", 1, "sequence", "sequence"])
    extra = ir.Value(name="extra", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
    model.graph.inputs.append(extra)
    before(softmax(model), 0, "Add", extra)


def soft_cap(model: ir.Model) -> None:
    before(softmax(model), 0, "Tanh")


def scaled(factor: float) -> Callable[[ir.Model], None]:
    def change(model: ir.Model) -> None:
        add = softmax(model).inputs[0].producer()
        before(add, 0, "Mul", number(model, "factor", factor))

    return change


def probabilities_used(model: ir.Model) -> None:
    use(model, softmax(model).outputs[0].name or "")


def wide_norm(model: ir.Model) -> None:
    """Queries are normalized over all heads at once."""
    _, add = dense(model, "0.attention.self.query")
    (reshape,) = (node for node in add.outputs[0].consumers() if node.op_type == "Reshape")
    query, gamma = add.outputs[0], np.random.default_rng(0).normal(1, 0.25, 32)
    mean = put(reshape, "ReduceMean", put(reshape, "Mul", query, query), axes=[-1])
    root = put(reshape, "Sqrt", put(reshape, "Add", mean, number(model, "epsilon", 1e-6)))
    before(reshape, 0, "Div", root)
    before(reshape, 0, "Mul", number(model, "gamma", gamma))


NEAR_MISSES: dict[str, tuple[Callable[[ir.Model], None], str, int]] = {
    "causal": (causal, "fully masked row", LAYERS - 1),
    "a window beside the mask": (window, "has a window beside", LAYERS - 1),
    "a mask of four dimensions": (four_dimensions, "'extra'", LAYERS - 1),
    "a scale of zero": (scaled(0.0), "above 0, got 0", LAYERS - 1),
    "a negative scale": (scaled(-1.0), "above 0, got -0.354", LAYERS - 1),
    "a soft cap": (soft_cap, "does not compute softmax", LAYERS - 1),
    "a norm of all heads at once": (wide_norm, "not by head", LAYERS - 1),
    "probabilities used elsewhere": (probabilities_used, "probabilities", LAYERS - 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_rejects_a_near_miss(name: str) -> None:
    change, reason, others = NEAR_MISSES[name]
    model = exports.model(PLAIN)
    change(model)
    fed_arrays = exports.feeds(["input_ids", "attention_mask", "token_type_ids"], length=40)
    fed_arrays["input_ids"][:, 4::5] = 7
    if name == "a mask of four dimensions":
        fed_arrays["extra"] = np.random.default_rng(0).normal(size=(5, 1, 40, 40)).astype(np.float32)
    _, report = check(model, fed_arrays)
    assert not report.complete
    assert report.fused["SelfAttention"] == others
    assert report.found["SelfAttention"] == LAYERS
    refused = [refusal for refusal in report.refusals if refusal.kind == "SelfAttention"]
    assert len(refused) == LAYERS - others
    assert all(reason in refusal.reason for refusal in refused), str(report)


def test_keeps_a_normalization_of_another_axis() -> None:
    model = exports.model(DECOMPOSED)
    means = [node for node in model.graph if node.op_type == "ReduceMean"]
    for node in means[2:4]:
        node.attributes["axes"] = ir.AttrInt64s("axes", [1])
    fused, report = check(model, feeds())
    assert report.fused["SkipLayerNormalization"] == 2 * LAYERS - 1
    assert [node.op_type for node in fused.graph].count("ReduceMean") == 2


def test_keeps_a_normalized_sum_with_other_readers() -> None:
    model = exports.model(PLAIN)
    normalization = [node for node in model.graph if node.op_type == "LayerNormalization"][1]
    use(model, normalization.inputs[0].name or "")
    _, report = check(model, feeds())
    assert report.complete
    assert report.fused["SkipLayerNormalization"] == 2 * LAYERS - 1


def test_keeps_an_inexact_gelu() -> None:
    model = exports.model(PLAIN)
    before(first(model, "Erf"), 0, "Mul", number(model, "off", 1.01))
    fused, report = check(model, feeds())
    assert report.fused["BiasGelu"] == LAYERS - 1
    assert [node.op_type for node in fused.graph].count("Erf") == 1


def test_rejects_cross_attention() -> None:
    model = exports.model(PLAIN)
    matmul, _ = dense(model, "1.attention.self.key")
    bounds = [number(model, f"bound {at}", [at], np.int64) for at in (-1, -(2**31), 1)]
    before(matmul, 0, "Slice", *bounds, bounds[0])  # the tokens of the row, from the last
    _, report = check(model, feeds())
    assert "not self-attention" in report.refusals[0].reason


def test_rejects_a_subgraph_that_cannot_be_evaluated() -> None:
    """DeBERTa picks scores by relative places with ``GatherElements``, beyond what small masks have."""
    model = exports.model(PLAIN)
    softmax = first(model, "Softmax")
    wide = number(model, "places", np.full((5, 4, 12, 12), 11), np.int64)
    before(softmax, 0, "GatherElements", wide, axis=-1)
    _, report = check(model, feeds())
    assert any("GatherElements" in refusal.reason for refusal in report.refusals)


def test_weights_that_may_be_fed() -> None:
    """As ``keep_initializers_as_inputs=True`` exports them."""
    model = exports.model(PLAIN)
    model.graph.inputs.extend(model.graph.initializers.values())
    _, report = check(model, feeds())
    assert not report.is_encoder
    assert "keep_initializers_as_inputs" in str(report)
