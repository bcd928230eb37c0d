"""What is changed between any two nodes of a model is still there after fusing: no pattern takes it for rounding."""

import random

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.pipeline import fuse
from rewrites import number

LABELS = (
    "bert-torchscript14-eager",
    "bert-dynamo23-sdpa",
    "albert-dynamo18-eager",
    "deberta-dynamo18-eager",
    "distilbert-tf2onnx13",
    "gte-dynamo18-sdpa",
    "modernbert-dynamo18-eager",
    "qwen3-dynamo18-sdpa",
    "t5-torchscript17-sdpa",
)
CHANGES = ("Min", "Max", "Add", "Mul", "Abs", "Neg")
VALUES = 4  # of each model are changed in each way
SPREAD = 1.5  # of what dense layers return: more than the samples of fusion have
TOLERANCE = 5e-5


@pytest.mark.sampled(27)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("label", LABELS)
def test_a_change_of_any_value_is_kept(label: str, change: str) -> None:
    chosen = random.Random(f"{label} {change}")
    feeds = exports.given(label)
    values = floats(spread(exports.model(label)))
    for index in chosen.sample(range(len(values)), VALUES):
        model = spread(exports.model(label))
        value = floats(model)[index]
        outputs = len(model.graph.outputs)
        model.graph.outputs.append(value)
        greatest = np.abs(exports.run(model, feeds, optimized=False)[outputs]).max(initial=0.0)
        del model.graph.outputs[outputs:]
        apply(model, value, change, float(min(greatest, 1e4)))
        proto = ir.serde.serialize_model(model)
        fuse(model)
        expected, results = (exports.run(graph, feeds, optimized=False) for graph in (proto, model))
        for before, after in zip(expected, results, strict=True):
            numbers = np.isfinite(before)
            numbers[4:] = False  # the last row is masked
            size = np.sqrt(np.square(before[numbers]).mean()) if numbers.any() else 0.0
            worst = np.abs(before - after)[numbers].max(initial=0.0)
            assert worst < TOLERANCE * max(size, 1e-3), (value.name, change)


def spread(model: ir.Model) -> ir.Model:
    """The model with dense layers whose outputs differ more than a trained model's."""
    for node in model.graph:
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None
        if weight is not None and weight.const_value is not None and len(weight.const_value.shape) == 2:
            array = weight.const_value.numpy()
            factor = SPREAD / (array.std() * np.sqrt(min(array.shape)))
            weight.const_value = ir.tensor((array * factor).astype(array.dtype))
    infer_shapes(model)
    return model


def floats(model: ir.Model) -> list[ir.Value]:
    """The values in fp32 that a node computes and another one reads."""
    outputs = [node.outputs[0] for node in model.graph if node.op_type != "Constant"]
    return [value for value in outputs if value.dtype == ir.DataType.FLOAT and value.shape and value.uses()]


def apply(model: ir.Model, value: ir.Value, change: str, greatest: float) -> None:
    """Let everything that reads a value read a change of it."""
    bounds = {"Min": 0.6 * greatest, "Max": -0.6 * greatest, "Add": 1e-3 * greatest, "Mul": 1.001}
    operands = [number(model, "changed_by", bounds[change])] if change in bounds else []
    readers = tuple(value.uses())
    node = ir.node(change, [value, *operands])
    before = value.producer()
    assert before is not None
    model.graph.insert_after(before, node)
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    for reader, index in readers:
        reader.replace_input_with(index, node.outputs[0])
