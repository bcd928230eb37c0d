"""Quantization of dense layers to 8 bits: Q/DQ nodes around the weights and activations of each product.

A product x W of hidden states (..., K) and weights (K, N) becomes

    DequantizeLinear(QuantizeLinear(x / s)) DequantizeLinear(W')

where W' is s W rounded to integers with a scale for each of its N columns (symmetric, zero point 0), and x / s has one
scale. The K factors s move the range of outlier channels from the activations to the weights (SmoothQuant, Xiao et al.
2022). Where a few channels still decide the range, they are left out of W' and added by a product of their own in
floating point, as in LLM.int8() (Dettmers et al. 2022). All other operators, such as residual sums, normalization and
the attention core, stay in floating point.

The graphs with and without padding removal use the same parameters, so that their results agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import InvalidModel
from isorun.graph.analysis import tokens
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions
from isorun.graph.ops.adding import Named

_QKV = ("query", "key", "value")
_FILE = "dense.npz"
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_MIN_SIZE = 32  # rows and columns; smaller products (a classifier's) take no time, and outputs are sensitive to them


@dataclass(frozen=True, slots=True)
class QuantizedDense:
    """The quantization parameters of a dense layer.

    Attributes:
        weight: W' (K, N), int8.
        weight_scale: (N,), float32.
        factors: 1 / s (K,), float32.
        scale, zero_point: of x / s: float32, and uint8 or, with zero point 0, int8.
        outliers: the channels that stay in floating point, int64; their rows of W' are zero.
        outlier_weight: their weights (outliers, N), float32.
    """

    weight: npt.NDArray[np.int8]
    weight_scale: npt.NDArray[np.float32]
    factors: npt.NDArray[np.float32]
    scale: np.float32
    zero_point: np.uint8
    outliers: npt.NDArray[np.int64]
    outlier_weight: npt.NDArray[np.float32]


Table = Mapping[str, QuantizedDense]
"""The quantized dense layers by the names of their weights."""


def layers(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value, ir.Value]]:
    """The dense layers of a fused model: the node, its input, and its weights (K, N)."""
    for node, activation, weight in _products(model):
        if activation is not None and weight is not None and not _reason(weight):
            yield node, activation, weight


def refusal(model: ir.Model) -> str:
    """Why products cannot be quantized: the distinct reasons."""
    reasons = {_reason(weight): None for _, _, weight in _products(model) if weight is not None}
    return "; ".join(filter(None, reasons)) or "it has no matrix product"


def _products(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value | None, ir.Value | None]]:
    for node in model.graph:
        if functions.is_fused(node, functions.ATTENTION):
            yield node, node.inputs[0], node.inputs[2]
        elif node.domain == "" and node.op_type == "MatMul":
            yield node, node.inputs[0], node.inputs[1]


def _reason(weight: ir.Value) -> str:
    """Why a product's second factor cannot be quantized as weights; empty if it can."""
    tensor = tokens.constant(weight)
    if tensor is None or not weight.is_initializer() or weight.is_graph_input():
        return "weights that are not constants of the graph"
    if tensor.dtype != ir.DataType.FLOAT:
        return f"weights that are {tensor.dtype.name.lower()}, not fp32"
    shape = tensor.shape.numpy()
    if len(shape) != 2 or min(shape) < _MIN_SIZE:
        return f"weights with fewer than {_MIN_SIZE} rows or columns, or not a matrix"
    return ""


def tap(model: ir.Model) -> tuple[dict[str, ir.TensorProtocol], dict[str, list[str]], set[str]]:
    """Make the inputs of the dense layers outputs of the graph, in place.

    Returns:
        The layers' weights by name; for each input the names of the weights that it is multiplied by; and the weights
        whose factors must be 1.
    """
    weights: dict[str, ir.TensorProtocol] = {}
    readers: dict[str, list[str]] = {}
    unsmoothed: set[str] = set()
    outputs = {value.name for value in model.graph.outputs}
    for _, activation, weight in list(layers(model)):
        name = needed(weight.name)
        weights[name] = needed(weight.const_value)
        readers.setdefault(needed(activation.name), []).append(name)
        if _is_sum_of_product(activation):
            unsmoothed.add(name)
        if activation.name not in outputs:
            activation.type = activation.type or ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(activation)
            outputs.add(activation.name)
    return weights, readers, unsmoothed


def _is_sum_of_product(activation: ir.Value) -> bool:
    """Whether a value is a dense layer's output, as after ALBERT's embeddings.

    If other nodes read it as well, such as the product of its outliers, OpenVINO 2026.4.1 computes its quantization
    wrongly unless all factors are 1.
    """
    producer = activation.producer()
    if producer is not None and producer.op_type == "Add":
        products = (value.producer() for value in producer.inputs if value is not None)
        return any(node is not None and node.op_type == "MatMul" for node in products)
    return False


def check_finite(model: ir.Model, weights: Mapping[str, ir.TensorProtocol]) -> None:
    """Reject a model with numbers for which no scale exists.

    Args:
        model: the graph. Its constants may be infinite, like values that mask scores, but not NaN.
        weights: the weights of its dense layers from :func:`tap`, which must be finite.

    Raises:
        InvalidModel: the message names the tensor.
    """
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()} | dict(weights)
    for name, tensor in tensors.items():
        if tensor is None or tensor.dtype not in _FLOATS:
            continue
        array = tensor.numpy()
        bad = np.isnan(array) if name not in weights else ~np.isfinite(array)
        if bad.any():
            number = array[bad].flat[0]
            raise InvalidModel(
                f"The model cannot be quantized: tensor {name!r} contains {number}. Repair or replace it"
            )


def quantize(model: ir.Model, table: Table) -> None:
    """Quantize the dense layers in a table, in place.

    Args:
        model: a fused graph, with or without padding removal.
        table: its table from :mod:`isorun.compilation.calibration`.
    """
    _Quantizer(model, table).run()


def save(table: Table, folder: Path) -> None:
    """Write a table to a folder."""
    np.savez(
        folder / _FILE,
        **{f"{f.name}:{name}": getattr(dense, f.name) for name, dense in table.items() for f in fields(dense)},
    )


def load(folder: Path) -> dict[str, QuantizedDense]:
    """Read a table from a folder."""
    values: dict[str, dict[str, Any]] = {}
    with np.load(folder / _FILE) as arrays:
        for key in arrays.files:
            field, name = key.split(":", 1)
            values.setdefault(name, {})[field] = arrays[key]
    return {name: QuantizedDense(**layer) for name, layer in values.items()}


class _Layer(NamedTuple):
    """A dense layer that is quantized: its name and that of its weights, and its input before and after Q/DQ."""

    name: str
    weight: str
    dense: QuantizedDense
    activation: ir.Value
    quantized: ir.Value


class _Quantizer:
    """The rewrite of one model."""

    def __init__(self, model: ir.Model, table: Table) -> None:
        self._model = model
        self._graph = model.graph
        self._table = table
        self._weights: dict[tuple[str, tuple[int, int] | None], ir.Value] = {}
        named = (name for node in model.graph for name in (node.name, *(value.name for value in node.outputs)))
        self._names = Counter(filter(None, named))  # runtimes reject two nodes of one name

    def run(self) -> None:
        for node, _, weight in list(layers(self._model)):
            activation = needed(node.inputs[0])  # may differ from the layer's: a preceding attention was replaced
            if weight.name is None or weight.name not in self._table:
                continue
            dense = self._table[weight.name]
            name = node.name or node.outputs[0].name or weight.name
            layer = _Layer(name, weight.name, dense, activation, self._activation(name, activation, dense))
            if node.op_type == "MatMul":
                subgraph.replace_node(node, self._product(layer))
            else:
                self._attention(node, layer)
        self._graph.sort()
        common.RemoveUnusedNodesPass()(self._model)
        functions.carry(self._model)

    def _attention(self, node: ir.Node, layer: _Layer) -> None:
        """Three products and the attention core."""
        inputs, op = functions.inputs(node), Named(self, layer.name)
        ends = np.cumsum((0, *functions.widths(node, layer.dense.weight.shape[1]))).tolist()
        parts: dict[str, ir.Value | None] = {}
        for part, columns in zip(_QKV, pairwise(ends), strict=True):
            parts[part] = product = self._product(layer, f".{part}", columns)
            if (bias := inputs.get("qkv_bias")) is not None:
                numbers = needed(tokens.constant(bias)).numpy()[slice(*columns)]
                own_bias = Named(self, str(bias.name)).constant(part, numbers)
                parts[part] = op("Add", product, own_bias)
        core = functions.ordered(functions.CORE, inputs | parts)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        subgraph.replace_node(node, op(functions.CORE, *core, domain=functions.DOMAIN, **attributes))

    def _product(self, layer: _Layer, part: str = "", columns: tuple[int, int] | None = None) -> ir.Value:
        """x W, or its columns from one number to another."""
        dense, op = layer.dense, Named(self, f"{layer.name}{part}")
        product = op("MatMul", layer.quantized, self._weight(layer.weight, dense, columns))
        if not dense.outliers.size:
            return product
        channels = Named(self, layer.name).constant("outliers", dense.outliers)
        rows = np.ascontiguousarray(dense.outlier_weight[:, slice(*columns or (None,))])
        own_product = op(
            "MatMul", op("Gather", layer.activation, channels, axis=-1), op.constant("outliers.weight", rows)
        )
        return op("Add", product, own_product)

    def _activation(self, name: str, activation: ir.Value, dense: QuantizedDense) -> ir.Value:
        """x -> DequantizeLinear(QuantizeLinear(x / s))."""
        op = Named(self, name)
        if not np.all(dense.factors == 1):
            activation = op("Mul", activation, op.constant("factors", dense.factors))
        scale = op.constant("scale", np.asarray(dense.scale))
        zero = op.constant("zero_point", np.asarray(dense.zero_point))
        return op("DequantizeLinear", op("QuantizeLinear", activation, scale, zero), scale, zero)

    def _weight(self, name: str, dense: QuantizedDense, columns: tuple[int, int] | None = None) -> ir.Value:
        """A weight, or the columns from one number to another. Weights that layers share stay shared."""
        begin, end = columns or (0, dense.weight.shape[1])
        if (name, columns) not in self._weights:
            op = Named(self, f"{name}.int8" if columns is None else f"{name}.int8.{begin}")
            weight = op.constant("weight", np.ascontiguousarray(dense.weight[:, begin:end]))
            scale = op.constant("scale", dense.weight_scale[begin:end])
            zero = op.constant("zero_point", np.zeros(end - begin, np.int8))
            self._weights[name, columns] = op("DequantizeLinear", weight, scale, zero, axis=1)
        return self._weights[name, columns]

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        if name not in self._graph.initializers:
            self._graph.initializers.add(ir.val(name, const_value=ir.tensor(array, name=name)))
        return self._graph.initializers[name]

    def add(self, node: ir.Node, name: str) -> None:
        self._graph.append(node)
        self._names[name] += 1
        node.name = node.outputs[0].name = f"{name}.{self._names[name]}" if self._names[name] > 1 else name
