"""Weights and biases of one element, which broadcast, and axes that are not the last."""

import numpy as np
import onnx_ir as ir
import pytest

import exports
from rewrites import PLAIN, check, dense, feeds, first, number


def extend(model: ir.Model, nodes: list[ir.Node]) -> None:
    """Add nodes whose last output becomes the only one of the model."""
    model.graph.extend(nodes)
    value = nodes[-1].outputs[0]
    value.name, value.type = "extended", ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs[:] = [value]


@pytest.mark.parametrize("layer", ["query", "key", "value"])
def test_bias_of_one_element_before_an_attention(layer: str) -> None:
    model = exports.model(PLAIN)
    _, add = dense(model, f"0.attention.self.{layer}")
    bias = next(index for index, value in enumerate(add.inputs) if value.const_value is not None)
    add.replace_input_with(bias, number(model, "one", [0.3]))
    check(model, feeds())


@pytest.mark.parametrize(("columns", "width"), [(64, 1), (1, 64)])
def test_bias_of_another_width_before_a_gelu(columns: int, width: int) -> None:
    model = exports.model(PLAIN)
    random = np.random.default_rng(0)
    weight = number(model, "w", random.normal(size=(32, columns)))
    product = ir.node("MatMul", [model.graph.outputs[0], weight])
    total = ir.node("Add", [product.outputs[0], number(model, "b", random.normal(size=width))])
    share = ir.node("Div", [total.outputs[0], number(model, "root", 2**0.5)])
    error = ir.node("Erf", share.outputs)
    more = ir.node("Add", [error.outputs[0], number(model, "one", 1.0)])
    twice = ir.node("Mul", [total.outputs[0], more.outputs[0]])
    half = ir.node("Mul", [twice.outputs[0], number(model, "half", 0.5)])
    extend(model, [product, total, share, error, more, twice, half])
    check(model, feeds())


@pytest.mark.parametrize("index", [1, 2])
def test_normalization_with_one_number_for_all_columns(index: int) -> None:
    model = exports.model("bert-dynamo18-eager")
    first(model, "LayerNormalization").replace_input_with(index, number(model, "one", [1.3]))
    check(model, feeds())


@pytest.mark.parametrize("kind", ["layer", "pool", "rms"])
def test_normalization_over_another_axis_than_the_last(kind: str) -> None:
    """Over those of the heads of (batch, sequence, heads, width)."""
    model = exports.model(PLAIN)
    nodes: list[ir.Node] = []

    def add(operator: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        nodes.append(ir.node(operator, list(inputs), attributes))  # type: ignore[arg-type]
        return nodes[-1].outputs[0]

    def mean(value: ir.Value) -> ir.Value:
        return add("GlobalAveragePool", value) if kind == "pool" else add("ReduceMean", value, axes=[2])

    heads = add("Reshape", model.graph.outputs[0], number(model, "heads", [0, 0, 4, 8], np.int64))
    centered = heads if kind == "rms" else add("Sub", heads, mean(heads))
    variance = add("Add", mean(add("Mul", centered, centered)), number(model, "epsilon", 1e-5))
    unit = add("Div", centered, add("Sqrt", variance))
    result = add("Mul", unit, number(model, "gamma", np.linspace(0.5, 1.5, 8)))
    if kind != "rms":
        add("Add", result, number(model, "beta", np.linspace(-0.5, 0.5, 8)))
    extend(model, nodes)
    check(model, feeds())


def test_slice_with_steps_and_without_axes() -> None:
    """A gate that is cut along the batch, in a place of the operands where axes may be looked for."""
    model = exports.model(PLAIN)
    random = np.random.default_rng(0)
    product = ir.node("MatMul", [model.graph.outputs[0], number(model, "w", random.normal(size=(32, 64)) / 9)])
    numbers = [number(model, name, [value], np.int64) for name, value in (("from", 0), ("to", 2), ("by", 2))]
    cut = ir.node("Slice", [product.outputs[0], numbers[0], numbers[1], None, numbers[2]])
    uncut = ir.node("MatMul", [model.graph.outputs[0], number(model, "v", random.normal(size=(32, 64)) / 9)])
    half = ir.node("Sigmoid", uncut.outputs)
    silu = ir.node("Mul", [uncut.outputs[0], half.outputs[0]])
    gated = ir.node("Mul", [silu.outputs[0], cut.outputs[0]])
    extend(model, [product, cut, uncut, half, silu, gated])
    check(model, feeds())


@pytest.mark.parametrize("axis", [None, 2])
def test_softmax_over_several_axes(axis: int | None) -> None:
    """Before opset 13, the axes from one on are one."""
    model = exports.model("bert-torchscript12-eager")
    node = [node for node in model.graph if node.op_type == "Softmax"][1]
    del node.attributes["axis"]
    if axis is not None:
        node.attributes["axis"] = ir.AttrInt64("axis", axis)
    _, report = check(model, feeds())
    assert report.fused["SelfAttention"] == 2


def test_names_that_the_passes_give_too() -> None:
    model = exports.model("t5-dynamo18-eager")
    first(model, "MatMul").outputs[0].name = "isorun.by_distance"
    check(model, exports.feeds(["input_ids", "attention_mask"]))


def test_operators_that_the_reference_computes_wrongly_are_not_folded() -> None:
    model = exports.model(PLAIN)
    norm = ir.node("LpNormalization", [number(model, "signs", [[1.0, -2.0, 3.0]])], {"p": 1, "axis": -1})
    total = ir.node("ReduceSum", [norm.outputs[0]], {"keepdims": 0})
    extend(model, [norm, total, ir.node("Mul", [model.graph.outputs[0], total.outputs[0]])])
    check(model, feeds())
