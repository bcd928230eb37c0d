"""One-shot magnitude pruning of dense layers, for benchmarks of sparse engines and kernels.

It uses no data and no training. At useful sparsities a trained model loses accuracy; methods that train while pruning,
such as oBERT (Kurtic et al., 2022), preserve it and yield weights with the same two patterns:

- ``unstructured``: single weights, by absolute value.
- ``block4``: blocks of 4 weights, by the sum of absolute values. A block has consecutive inputs of one output: VNNI's
  ``vpdpbusd`` adds 4 such 8-bit products to one sum, so that a block of zeros saves one instruction (for 16 outputs).

Every matrix gets the same sparsity; in the fused form Q, K and V are one matrix. Existing zeros are kept.
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
    """A pruned matrix.

    Attributes:
        layer: the node's name.
        weight: the matrix's name.
        elements: the number of its elements.
        zeros: the minimum number of zeros among them.
    """

    layer: str
    weight: str
    elements: int
    zeros: int


def prune(
    model: ir.Model, sparsity: float, pattern: str = "unstructured", *, layers: Sequence[str] | None = None
) -> tuple[Pruned, ...]:
    """Prune a graph in place. The new weights are computed whenever they are read.

    Args:
        model: a graph in the fused form; with ``layers``, any graph.
        sparsity: the fraction of each matrix to set to zero, between 0 and 1; rounded to whole weights or blocks.
        pattern: one of :data:`PATTERNS`.
        layers: names of dense layers' nodes, with ``*`` and ``?`` as wildcards. ``None`` for those of the encoder,
            without embeddings, poolers and classifiers.

    Returns:
        The pruned matrices, in graph order.

    Raises:
        IsorunError: the sparsity or pattern is invalid, or no layer matches a name.
        UnsupportedModel: there is nothing to prune, or a matrix does not support the pattern.
    """
    if not 0 < sparsity < 1:
        raise IsorunError(f"sparsity must be above 0 and below 1, such as 0.8; got {sparsity:g}")
    if pattern not in PATTERNS:
        raise IsorunError(f"Invalid pattern {pattern!r}{did_you_mean(pattern, PATTERNS)}")
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    layer_weights = [(node, index, matrix) for node in model.graph for index, matrix in matrices(node)]
    dense = [(node, matrix) for node, index, matrix in layer_weights if is_dense(node, index)]
    chosen = _encoder(model, dense) if layers is None else _named(dense, layers)
    nodes = {node for node, _ in chosen}
    shared = {matrix.value: node for node, _, matrix in layer_weights if node not in nodes}
    pruned: dict[ir.Value, Pruned] = {}
    for node, matrix in chosen:
        if (sharing := shared.get(matrix.value)) is not None:
            raise UnsupportedModel(
                f"The layer {node.name!r} shares its weights with {sharing.name!r}, which is not to be pruned. "
                "Name both or neither"
            )
        if matrix.value not in pruned:  # layers may share their weights
            pruned[matrix.value] = _prune(node, matrix, sparsity, pattern)
    return tuple(pruned.values())


_DenseNodes = list[tuple[ir.Node, Matrix]]


def _encoder(model: ir.Model, dense: _DenseNodes) -> _DenseNodes:
    """The dense layers that an attention or skip connection depends on, including those of the attention."""
    before: set[ir.Node] = set()
    stack = [node for node in model.graph if functions.is_fused(node, *_ENDS)]
    while stack:
        node = stack.pop()
        if node not in before:
            before.add(node)
            stack.extend(producer for value in node.inputs if value and (producer := value.producer()) is not None)
    if not before:
        raise UnsupportedModel(
            "Cannot choose the layers to prune: the model is not an encoder that isorun fuses. "
            "Name the layers; `isorun inspect` lists them"
        )
    return [(node, matrix) for node, matrix in dense if node in before]


def _named(dense: _DenseNodes, patterns: Sequence[str]) -> _DenseNodes:
    names = [node.name or "" for node, _ in dense]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise IsorunError(f"No dense layer matches {pattern!r}{did_you_mean(pattern, names)}")
    return [(node, matrix) for node, matrix in dense if any(fnmatchcase(node.name or "", name) for name in patterns)]


def _prune(node: ir.Node, matrix: Matrix, sparsity: float, pattern: str) -> Pruned:
    tensor, name = matrix.value.const_value, node.name or ""
    assert tensor is not None
    if tensor.dtype not in PRECISIONS:
        raise UnsupportedModel(
            f"The layer {name!r} has {precision(tensor.dtype)} weights. Prune the model before quantizing it"
        )
    shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]  # a constant's are numbers
    by_output = matrix.transposed != turns(node)  # stored as (output, input)
    inputs = shape[-1] if by_output else shape[-2]
    if pattern == "block4" and (len(shape) != 2 or inputs % BLOCK):
        raise UnsupportedModel(
            f"The layer {name!r} has {inputs} inputs, not a multiple of {BLOCK}. Use the pattern 'unstructured', "
            "or name the other layers"
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
    """The weights that remain without the ``count`` smallest blocks of ``size`` along the last axis."""
    magnitude = np.abs(weights.astype(np.float32)).reshape(-1, size).sum(axis=1)
    kept = np.ones(magnitude.size, bool)
    kept[np.argpartition(magnitude, count - 1)[:count] if count else []] = False
    return np.repeat(kept, size).reshape(weights.shape)
