"""Weights of dense layers set to zero, the smallest first: what sparse engines and sparse kernels are measured with.

One-shot and by magnitude: no data, no training. At the sparsities that pay, a trained model loses accuracy by it;
methods that train while they prune, such as oBERT (Kurtic et al., 2022), keep it, and give weights with the same
two patterns:

- ``unstructured``: each weight by itself, by its absolute value.
- ``block4``: blocks of 4 weights, by the sum of their absolute values. A block lies along the input, of one output:
  VNNI's ``vpdpbusd`` adds 4 neighbouring 8-bit products along the input to one sum, so that a block of zeros is
  one instruction less (for 16 outputs). Two neighbours along the output would be in different sums.

Every matrix gets the same share of zeros; in the fused form Q, K and V are one matrix. Zeros that are there already
come first, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import IsorunError, UnsupportedModel, did_you_mean
from isorun.graph.analysis.layers import BLOCK, PRECISIONS, Matrix, is_dense, matrices, precision, turns
from isorun.graph.ops import functions

PATTERNS = ("unstructured", "block4")

_ENDS = frozenset((functions.ATTENTION, functions.CORE, "SkipLayerNormalization"))


@dataclass(frozen=True, slots=True)
class Pruned:
    """A matrix that has been pruned.

    Attributes:
        layer: the name of the node that has it.
        weight: its own.
        elements: how many it has.
        zeros: how many of them are zero now, at the least.
    """

    layer: str
    weight: str
    elements: int
    zeros: int


def prune(
    model: ir.Model, sparsity: float, pattern: str = "unstructured", *, layers: Sequence[str] | None = None
) -> tuple[Pruned, ...]:
    """Prune a graph, in place. The new weights are computed whenever they are read; the old ones stay as they are.

    Args:
        model: a graph in the fused form; with ``layers``, any graph.
        sparsity: the share of each matrix that becomes zero, above 0 and below 1; rounded to whole weights or blocks.
        pattern: one of :data:`PATTERNS`.
        layers: which dense layers, by their nodes' names, with ``*`` and ``?``. ``None`` for those of the encoder:
            not embeddings, nor what stands on the last layer (poolers, classifiers).

    Returns:
        What was pruned, in the graph's order.

    Raises:
        IsorunError: a sparsity, pattern or layer that there is not.
        UnsupportedModel: there is nothing to prune, or a matrix cannot be pruned so.
    """
    if not 0 < sparsity < 1:
        raise IsorunError(f"The sparsity is {sparsity:g}; it is a share above 0 and below 1, such as 0.8")
    if pattern not in PATTERNS:
        raise IsorunError(f"Invalid pattern {pattern!r}{did_you_mean(pattern, PATTERNS)}")
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    found = [(node, index, matrix) for node in model.graph for index, matrix in matrices(node)]
    dense = [(node, matrix) for node, index, matrix in found if is_dense(node, index)]
    chosen = _encoder(model, dense) if layers is None else _named(dense, layers)
    nodes = {node for node, _ in chosen}
    shared = {matrix.value: node for node, _, matrix in found if node not in nodes}
    pruned: dict[ir.Value, Pruned] = {}
    for node, matrix in chosen:
        if (other := shared.get(matrix.value)) is not None:
            raise UnsupportedModel(
                f"The weights of {node.name!r} are those of {other.name!r} as well, which is not to be pruned"
            )
        if matrix.value not in pruned:  # layers may share their weights
            pruned[matrix.value] = _prune(node, matrix, sparsity, pattern)
    return tuple(pruned.values())


_Dense = list[tuple[ir.Node, Matrix]]


def _encoder(model: ir.Model, dense: _Dense) -> _Dense:
    """The dense layers that an attention or a skip connection follows, and those that are an attention's own."""
    before: set[ir.Node] = set()
    stack = [node for node in model.graph if functions.is_fused(node) and node.op_type in _ENDS]
    while stack:
        node = stack.pop()
        if node not in before:
            before.add(node)
            stack.extend(producer for value in node.inputs if value and (producer := value.producer()) is not None)
    if not before:
        raise UnsupportedModel(
            "Nothing was pruned: the model is no encoder that isorun fuses, so it does not know which layers to prune. "
            "Name them; `isorun inspect` lists them"
        )
    return [each for each in dense if each[0] in before]


def _named(dense: _Dense, patterns: Sequence[str]) -> _Dense:
    names = [node.name or "" for node, _ in dense]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise IsorunError(f"There is no dense layer {pattern!r}{did_you_mean(pattern, names)}")
    return [each for each in dense if any(fnmatchcase(each[0].name or "", pattern) for pattern in patterns)]


def _prune(node: ir.Node, matrix: Matrix, sparsity: float, pattern: str) -> Pruned:
    tensor, name = matrix.value.const_value, node.name or ""
    assert tensor is not None
    if tensor.dtype not in PRECISIONS:
        raise UnsupportedModel(
            f"The weights of {name!r} are {precision(tensor.dtype)}: prune the model before it is quantized"
        )
    shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]  # a constant's are numbers
    by_output = matrix.transposed != turns(node)  # stored as (output, input)
    inputs = shape[-1] if by_output else shape[-2]
    if pattern == "block4" and (len(shape) != 2 or inputs % BLOCK):
        raise UnsupportedModel(
            f"The layer {name!r} has {inputs} inputs, which blocks of {BLOCK} do not divide. Take the pattern "
            "'unstructured', or name the other layers"
        )
    size = BLOCK if pattern == "block4" else 1
    count = round(sparsity * tensor.size / size)

    def zeroed() -> ir.TensorProtocol:
        stored = tensor.numpy()
        kept = _kept(stored if by_output else np.moveaxis(stored, -1, -2), count, size)
        return ir.tensor(np.where(kept if by_output else np.moveaxis(kept, -1, -2), stored, stored.dtype.type(0)))

    matrix.value.const_value = ir.LazyTensor(zeroed, dtype=tensor.dtype, shape=ir.Shape(shape), name=matrix.value.name)
    return Pruned(name, matrix.value.name or "", tensor.size, count * size)


def _kept(weights: np.ndarray, count: int, size: int) -> np.ndarray:
    """Which weights stay when the ``count`` smallest runs of ``size`` along the last axis go."""
    magnitude = np.abs(weights.astype(np.float32)).reshape(-1, size).sum(axis=1)
    kept = np.ones(magnitude.size, bool)
    kept[np.argpartition(magnitude, count - 1)[:count] if count else []] = False
    return np.repeat(kept, size).reshape(weights.shape)
