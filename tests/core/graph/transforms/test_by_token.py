"""Padding is removed of models that reduce the vector of each token: norms, maxima, the largest ones; and of models
that put something else in the place of padding before they pool."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
from isorun.errors import UnsupportedModel
from isorun.graph.matching import subgraph
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal

EXPORT = "bert-torchscript17-eager"
MASKS = {
    "right": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    "left": [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [1, 1, 0, 1, 1]],
    "no padding": [[1, 1, 1, 1, 1]] * 3,
    "no key": [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
}


class Nodes:
    """Adds nodes to a model, in its opset 17."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.hidden = model.graph.outputs[0]

    def __call__(self, kind: str, *inputs: ir.Value, outputs: int = 1, **attributes: float | list[int]) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, num_outputs=outputs)
        self.graph.append(node)
        return node.outputs[-1]

    def constant(self, *numbers: float, dtype: type = np.int64, shape: tuple[int, ...] = (-1,)) -> ir.Value:
        name = f"constant.{len(self.graph.initializers)}"
        return subgraph.constant(self.graph, name, ir.tensor(np.array(numbers, dtype).reshape(shape), name=name))


def normalized(op: Nodes) -> ir.Value:
    """As PyTorch exports ``torch.nn.functional.normalize``."""
    norm = op("Clip", op("ReduceL2", op.hidden, axes=[2]), op.constant(1e-12, dtype=np.float32, shape=()))
    return op("Div", op.hidden, op("Expand", norm, op("Shape", op.hidden)))


def normalized_by_sizes(op: Nodes) -> ir.Value:
    """The same as PyTorch's newer exporter writes it: the shape is put together, and values have named dimensions."""
    norm = op("Clip", op("ReduceL2", op.hidden, axes=[2]), op.constant(1e-12, dtype=np.float32, shape=()))
    of_rows = op("Shape", op.graph.inputs[0])
    expanded = op("Expand", norm, op("Concat", of_rows, op.constant(32), axis=0))
    op.hidden.shape, expanded.shape = (ir.Shape(["batch", "sequence", 32]) for _ in range(2))
    return op("Div", op.hidden, expanded)


BY_TOKEN: dict[str, Callable[[Nodes], ir.Value]] = {
    "norm": normalized,
    "norm by sizes": normalized_by_sizes,
    "reciprocal": lambda op: op("Mul", op.hidden, op("Reciprocal", op("ReduceL2", op.hidden, axes=[2]))),
    "sum of squares": lambda op: op("ReduceSumSquare", op.hidden, axes=[-1], keepdims=0),
    "sum": lambda op: op("ReduceSum", op.hidden, op.constant(-1), keepdims=0),
    "largest": lambda op: op("ArgMax", op.hidden, axis=-1, keepdims=0),
    "smallest": lambda op: op("ArgMin", op.hidden, axis=2),
    "three largest": lambda op: op("TopK", op.hidden, op.constant(3), outputs=2),
    "normalization": lambda op: op("LpNormalization", op.hidden),
}


@pytest.mark.parametrize("kind", BY_TOKEN)
def test_reductions_of_each_token(kind: str) -> None:
    model = exports.model(EXPORT)
    reduced = BY_TOKEN[kind](Nodes(model))
    reduced.name = "reduced"
    reduced.type = ir.TensorType(
        ir.DataType.INT64 if kind in ("largest", "smallest", "three largest") else ir.DataType.FLOAT
    )
    model.graph.outputs.append(reduced)
    untouched = ir.serde.serialize_model(model)
    fuse(model)
    assert "reduced" in padding_removal.remove(model)
    for mask in map(np.array, MASKS.values()):
        expected, actual = (last_output(form, mask)[mask != 0] for form in (untouched, model))
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def last_output(model: ir.Model | onnx.ModelProto, mask: np.ndarray) -> np.ndarray:
    ids = np.random.default_rng(0).integers(1, 30, mask.shape)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    names = (value.name for value in (model.graph.inputs if isinstance(model, ir.Model) else model.graph.input))
    feeds = {name: feeds[name or ""] for name in names if name}
    return np.asarray(exports.run(model, feeds)[-1])


def is_padding(op: Nodes, *axes: int) -> ir.Value:
    mask = next(value for value in op.graph.inputs if value.name == "attention_mask")
    return op("Equal", op("Unsqueeze", mask, op.constant(*axes)) if axes else mask, op.constant(0, shape=()))


def number(op: Nodes, value: float) -> ir.Value:
    return op.constant(value, dtype=np.float32, shape=())


REPLACED: dict[str, Callable[[Nodes], ir.Value]] = {
    "sum": lambda op: op("ReduceSum", op("Where", is_padding(op, 2), number(op, 0), op.hidden), op.constant(1)),
    "maximum": lambda op: op(
        "ReduceMax", op("Where", op("Not", is_padding(op, -1)), op.hidden, number(op, -1e9)), axes=[1]
    ),
    "probabilities": lambda op: op(
        "Softmax", op("Where", is_padding(op), number(op, -100), op("ReduceMax", op.hidden, axes=[2], keepdims=0))
    ),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_values_replaced_at_padding(kind: str) -> None:
    """As E5 and Contriever pool, ``hidden.masked_fill(~mask[..., None].bool(), 0).sum(1)``."""
    model = exports.model(EXPORT)
    pooled = REPLACED[kind](Nodes(model))
    pooled.name, pooled.type = "pooled", ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(pooled)
    untouched = ir.serde.serialize_model(model)
    fuse(model)
    assert "pooled" not in padding_removal.remove(model)
    for mask in map(np.array, MASKS.values()):
        expected, actual = (last_output(form, mask) for form in (untouched, model))
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_values_replaced_at_tokens_are_refused() -> None:
    model = exports.model(EXPORT)
    op = Nodes(model)
    at_padding = op("ReduceSum", op("Where", is_padding(op, 2), op.hidden, number(op, 0)), op.constant(1))
    at_padding.name, at_padding.type = "pooled", ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(at_padding)
    fuse(model)
    with pytest.raises(UnsupportedModel, match=r"\(Where\) may read the hidden states of padding"):
        padding_removal.remove(model)


@pytest.mark.parametrize("kind", ["ArgMax", "ReduceMax", "LpNormalization"])
def test_reductions_over_tokens_are_refused(kind: str) -> None:
    model = exports.model(EXPORT)
    op = Nodes(model)
    reduced = op(kind, op.hidden, **({"axes": [1]} if kind == "ReduceMax" else {"axis": 1}))
    reduced.name, reduced.type = "reduced", ir.TensorType(ir.DataType.INT64 if kind == "ArgMax" else ir.DataType.FLOAT)
    model.graph.outputs.append(reduced)
    fuse(model)
    with pytest.raises(UnsupportedModel, match=rf"\({kind}\) may read the hidden states of padding"):
        padding_removal.remove(model)
