"""The subgraph of an attention: everything between the dense layers before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import Samples, ancestors, behind, data_inputs, is_constant, sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.matching.subgraph import DenseLayer

_MAX_NODES = 80  # more than any exported attention has
_MAX_NODES_QUANTIZED = 500  # with two nodes before each input and behind each output
_BY_TOKEN = frozenset(("Add", "Cast", "LayerNormalization", "MatMul", "Mul"))
_SAME_NUMBERS = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_SHAPE_ALONE = ("Shape", "Size")
_BOUNDING = frozenset(("Clip", "Max", "Min"))
"""Operators that change large values in another way than small ones, unless the bounds are the ends of a type."""
_INSIDE = frozenset(
    (
        *("Add", "Attention", "Cast", "CastLike", "Concat", "Div", "Einsum", "Expand", "Flatten", "Gather"),
        *("GatherElements", "Identity", "IsInf", "IsNaN", "LayerNormalization", "MatMul", "Mul", "Neg", "Not", "Or"),
        *("Pow", "Reciprocal"),
        *("ReduceMean", "Reshape", "RMSNormalization", "RotaryEmbedding", "Slice", "Softmax", "Split", "Sqrt"),
        *("Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""The operators of attentions. Others may do with large numbers, or in long rows, what the samples do not show."""
_QUANTIZED_PRODUCTS = frozenset(
    ("DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearMatMul")
)
_ENDLESS = 1e30


@dataclass(frozen=True)
class AttentionPattern:
    """The subgraph of one attention.

    Attributes:
        root: the node that identifies it.
        context: its output, before the output projection, or before it is joined with another value (ConvBERT).
        layers: the dense layers before it, in no particular order: three, or fewer if one computes several of queries,
            keys and values. All have the same input, or inputs of which one is computed from another token by token.
        inside: its nodes that depend on these layers.
        turns: those of its other inputs that change queries and keys before their product: the cosines and sines of a
            rotation, constants in an export for one length.
        sides: the rest of its other inputs: masks, biases, numbers and shapes; no constants but those of more than one
            dimension.
        operands: queries and keys as their product reads them; ``None`` if it was not found.
        flat: whether batch and sequence are one dimension outside it.
        shared: whether something else reads its projections too, or one is computed in groups.
        positions: what queries and keys are rotated by, (B, S) integers; ``None`` for the position in the row.
    """

    root: ir.Node
    context: ir.Value
    layers: tuple[DenseLayer, ...]
    inside: Mapping[ir.Node, None]
    turns: tuple[ir.Value, ...]
    sides: tuple[ir.Value, ...]
    operands: tuple[ir.Value, ir.Value] | None
    flat: bool
    shared: bool
    positions: ir.Value | None = None

    @property
    def hidden(self) -> ir.Value:
        """The input of the projections, or of one of them."""
        return self.layers[0].input

    @property
    def is_joint(self) -> bool:
        """Whether one product can compute the projections: they have one input, and nothing else reads them."""
        return len({layer.input for layer in self.layers}) == 1 and not self.shared

    @property
    def width(self) -> int:
        """The width of queries."""
        uses = [output for use in self.context.consumers() for output in use.outputs]
        after = (layer for output in uses if (layer := subgraph.dense(output)) and layer.input is self.context)
        return next((sizes(layer.weight)[0] for layer in after), max(sizes(layer.weight)[1] for layer in self.layers))

    @property
    def key_width(self) -> int:
        """The width of keys and values, each."""
        return (sum(sizes(layer.weight)[1] for layer in self.layers) - self.width) // 2

    def around(self, batch: int, length: int) -> Samples:
        """Zeros for the inputs and outputs of the dense layers before it, and positions in order."""
        rows = (batch * length,) if self.flat else (batch, length)
        samples = {}
        for layer in self.layers:
            inputs, outputs = sizes(layer.weight)
            samples[layer.input] = np.zeros((*rows, inputs), np.float32)
            samples[layer.output] = np.zeros((*rows, outputs), np.float32)
        if self.positions is not None:
            dtype = np.dtype(np.int64) if self.positions.dtype is None else self.positions.dtype.numpy()
            samples[self.positions] = np.tile(np.arange(length, dtype=dtype), (batch, 1))
        return samples

    def evaluated(self, probes: Probes, value: ir.Value, length: int) -> np.ndarray:
        """A value for rows of a length, from zeros around the attention."""
        return probes.evaluator({**probes.feeds(length), **self.around(probes.rows, length)})(value)


def is_candidate(node: ir.Node) -> bool:
    """Whether a node may be an attention: ``Attention``, or ``Softmax`` of other values than a dense layer's, which are
    the probabilities of classes, or the kernels of ConvBERT's convolutions."""
    if node.domain != "" or node.op_type not in ("Softmax", "Attention"):
        return False
    value = node.inputs[0]
    return node.op_type == "Attention" or value is None or subgraph.dense(behind(value, _SAME_NUMBERS)) is None


def find(root: ir.Node) -> AttentionPattern:
    """Find the subgraph of an attention from its ``Softmax`` or ``Attention`` node.

    Raises:
        CannotFuse: the layers around it differ from an attention's, or other nodes read its intermediate values.
    """
    try:
        pattern = _subgraph_of(root)
    except CannotFuse:
        if (product := _quantized_product(root)) is not None:
            operator = f"{product.name!r}, {product.op_type}"
            raise CannotFuse(f"quantized layers compute its queries, keys or values ({operator})") from None
        raise
    rank = subgraph.rank(pattern.hidden)
    if rank not in (2, 3):
        raise CannotFuse(
            f"the projected value {pattern.hidden.name!r} must have 2 or 3 dimensions, got {rank or 'unknown'}"
        )
    pattern = replace(pattern, flat=rank == 2)
    if pattern.context.shape is None:
        pattern.context.shape = ir.Shape([None] * rank)
    return pattern


def _quantized_product(root: ir.Node) -> ir.Node | None:
    """A product with quantized weights in the place of a dense layer before an attention."""
    pending, seen = [root], {root}
    while pending and len(seen) <= _MAX_NODES_QUANTIZED:
        node = pending.pop(0)
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None
        if node.op_type in _QUANTIZED_PRODUCTS or (weight is not None and _is_dequantized(weight)):
            return node
        before = [value.producer() for value in node.inputs if value is not None and subgraph.dense(value) is None]
        pending += (new := [producer for producer in before if producer is not None and producer not in seen])
        seen.update(new)
    return None


def _is_dequantized(weight: ir.Value) -> bool:
    """Whether a weight is a constant that is dequantized."""
    node = behind(weight, _SAME_NUMBERS).producer()
    return node is not None and node.op_type == "DequantizeLinear" and not data_inputs(weight)


def _subgraph_of(root: ir.Node) -> AttentionPattern:
    context = _context(root)
    projections: dict[ir.Value, DenseLayer] = {}
    nodes: dict[ir.Node, None] = {}
    stack = [context]
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None or node in nodes or value in projections or is_constant(value):
            continue
        layer = subgraph.projection(value)
        if layer is not None and data_inputs(layer.input):  # not of a table of positions, cut to the length
            projections[value] = layer
            continue
        if node.op_type in _SHAPE_ALONE:
            continue
        nodes[node] = None
        stack.extend(source for source in node.inputs if source is not None)
    inside = _depend_on(projections, nodes)
    sources = {layer.input for layer in projections.values()}
    if not 1 <= len(projections) <= 3:
        raise CannotFuse(f"expected 1 to 3 dense layers before it (queries, keys and values), got {len(projections)}")
    if len(sources) != 1 and not (len(projections) == 3 and _same_tokens(sources)):
        names = ", ".join(sorted(repr(source.name) for source in sources))
        raise CannotFuse(f"its projections have different inputs ({names}): it is not self-attention")
    shared = any(subgraph.is_used_outside(layer.output, inside) or layer.groups > 1 for layer in projections.values())
    if shared and len(projections) < 3:
        raise CannotFuse("another node uses its projection of several of queries, keys and values")
    cap = root.attributes.get("softcap")
    if root.op_type == "Attention" and cap is not None and cap.as_float():
        raise CannotFuse("it does not compute softmax(scale Q K^T + mask) V: it has a soft cap")
    for node in inside:
        if node.op_type in _BOUNDING and _bounds(node):
            raise CannotFuse(f"it does not compute softmax(scale Q K^T + mask) V: it bounds values ({node.op_type})")
        if node.op_type not in _INSIDE | _BOUNDING:
            raise CannotFuse(f"it does not compute softmax(scale Q K^T + mask) V: it has {node.op_type}")
        for value in node.outputs:
            if value is not context and subgraph.is_used_outside(value, inside):
                what = "its probabilities" if node is root else f"its intermediate value {value.name!r}"
                if value.is_graph_output():
                    raise CannotFuse(
                        f"{what} is an output of the graph, like the keys and values that a decoder caches"
                    )
                raise CannotFuse(f"another node uses {what}")
    operands = _operands(root, inside, projections)
    computed = (ancestor for value in operands or () for ancestor in ancestors(value, frozenset(projections)))
    before = {node: None for value in computed if (node := value.producer()) is not None and node in inside}
    others = {node: None for node in inside if node not in before}
    turns = _read_outside(before, inside, projections)
    return AttentionPattern(
        root,
        context,
        tuple(projections.values()),
        inside,
        tuple(turns),
        tuple(value for value in _read_outside(others, inside, projections) if value not in turns),
        operands,
        flat=False,
        shared=shared,
    )


def _bounds(node: ir.Node) -> bool:
    """Whether a node changes values that a type's arithmetic is meant for: its constants are not the type's ends."""
    limits = [limit for value in node.inputs[1:] if value is not None for limit in [subgraph.scalar(value)]]
    limits += [node.attributes.get_float(name, np.inf) for name in ("min", "max")]
    dtype = node.outputs[0].dtype
    endless = 65504 if dtype == ir.DataType.FLOAT16 else _ENDLESS
    return not all(limit is not None and abs(limit) >= endless for limit in limits)


def _read_outside(
    readers: Iterable[ir.Node], inside: Mapping[ir.Node, None], projections: Mapping[ir.Value, object]
) -> list[ir.Value]:
    """What nodes read that is neither a number, nor a list of them, nor computed inside."""
    values = {
        value: None for node in readers for value in node.inputs if value is not None and value not in projections
    }
    read = [value for value in values if (node := value.producer()) is None or node not in inside]
    return [value for value in read if not is_constant(value) or len(sizes(value)) > 1]


def _operands(
    root: ir.Node, inside: Mapping[ir.Node, None], projections: Mapping[ir.Value, object]
) -> tuple[ir.Value, ir.Value] | None:
    """Queries and keys as their product reads them, rather than one of them and a table of positions."""
    if root.op_type == "Attention":
        query, key = root.inputs[:2]
        return None if query is None or key is None else (query, key)
    for value in ancestors(root.outputs[0], frozenset(projections)):
        node = value.producer()
        if node is not None and node in inside and node.op_type == "MatMul":
            factors = [factor for factor in node.inputs if factor is not None]
            if all(factor.producer() in inside or factor in projections for factor in factors):
                return factors[0], factors[1]
    return None


def _same_tokens(values: set[ir.Value]) -> bool:
    """Whether all but one of the values are computed from that one, each token from the same token (MobileBERT)."""
    behind = [ancestors(value, through=_BY_TOKEN) for value in values]
    return any(all(first in reached for reached in behind) for first in values)


def _context(root: ir.Node) -> ir.Value:
    """The input of the dense layer after an attention, or what is joined with a value of another origin before one."""
    contexts: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    stack = [root.outputs[0]]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.is_graph_output():
            what = "its probabilities are" if value is root.outputs[0] else f"{value.name!r}, which depends on it, is"
            raise CannotFuse(f"{what} an output of the graph")
        if len(seen) > _MAX_NODES:
            raise CannotFuse("no dense layer follows it")
        for use in value.consumers():
            if use.op_type in _SHAPE_ALONE:
                continue
            ends = any((layer := subgraph.dense(out)) is not None and layer.input is value for out in use.outputs)
            if ends or (use.op_type == "Concat" and value.shape is not None and _joins_others(use, root)):
                contexts[value] = None
            else:
                stack.extend(use.outputs)
    if len(contexts) != 1:
        raise CannotFuse(
            "no dense layer follows it"
            if not contexts
            else "another node uses its intermediate values: several dense layers depend on it"
        )
    return next(iter(contexts))


def _joins_others(node: ir.Node, root: ir.Node) -> bool:
    """Whether a concatenation has a part that is computed without an attention."""
    result = root.outputs[0]
    return any(part is not None and not is_constant(part) and result not in ancestors(part) for part in node.inputs)


def _depend_on(values: Iterable[ir.Value], nodes: dict[ir.Node, None]) -> dict[ir.Node, None]:
    """The nodes whose results depend on the data of these values, in their order: sets have one by address."""
    dependent: set[ir.Node] = set()
    stack = list(values)
    while stack:
        for use in stack.pop().consumers():
            if use in nodes and use not in dependent and use.op_type not in _SHAPE_ALONE:
                dependent.add(use)
                stack.extend(use.outputs)
    return {node: None for node in nodes if node in dependent}
