"""A decoder's first pass over a text, which is what an encoder does: its key-value cache is empty.

Decoders that are exported for generation read the keys and values of earlier tokens and write those of all tokens:
``past_key_values.0.key`` and ``present.0.key``, in Hugging Face's names. Who asks for none of the written ones has
nothing to pass to a second run.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph

_READ = re.compile(r"past(_key_values)?[._]\w")
_WRITTEN = re.compile(r"present(_key_values)?[._]\w")
_MASK = "attention_mask"
_GROUPED, _GROUPED_CACHE = "GroupQueryAttention", (3, 4)
_RANK, _TIME = 4, 2  # a cache is (batch, heads, tokens, width)


def keep(model: ir.Model) -> None:
    """Remove the inputs of a cache, in place.

    A graph stays unchanged if one of its outputs is written for a later run, or if it reads a cache for anything but
    attention and the number of earlier tokens.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    cached = [value for name, value in inputs.items() if name and _READ.match(name)]
    ids = next((value for value in graph.inputs if value.shape is not None and len(value.shape) == 2), None)
    if not cached or ids is None or any(_WRITTEN.match(value.name or "") for value in graph.outputs):
        return
    uses = [use for value in cached for use in value.uses()]
    if not all(use.node.graph is graph and _is_known(use.node, use.idx) for use in uses):
        return
    for use in uses:
        _detach(use.node, use.idx)
    for value in cached:
        graph.inputs.remove(value)
    if (mask := inputs.get(_MASK)) is not None and mask.shape is not None and len(mask.shape) == 2:
        mask.shape = ids.shape  # the earlier tokens are gone
    common.RemoveUnusedNodesPass()(model)


def _is_known(node: ir.Node, index: int) -> bool:
    if node.op_type == _GROUPED:
        return index in _GROUPED_CACHE
    if node.op_type == "Concat":
        return len(node.inputs) == 2 and node.attributes["axis"].as_int() in (_TIME, _TIME - _RANK)
    if node.op_type != "Shape" or node.outputs[0].is_graph_output():
        return False
    readers = node.outputs[0].consumers()  # may read nothing of a cache's shape but the number of tokens
    reads_time = (use.op_type == "Gather" and np.isin(_places(use), (_TIME, _TIME - _RANK)).all() for use in readers)
    return _is_time(node) or all(reads_time)


def _is_time(shape: ir.Node) -> bool:
    return shape.attributes.get_int("start", 0) == _TIME and shape.attributes.get_int("end", _RANK) == _TIME + 1


def _places(gather: ir.Node) -> np.ndarray:
    """The constant indices of a Gather; another number than any for computed ones."""
    indices = gather.inputs[1]
    tensor = None if indices is None else ir.convenience.get_const_tensor(indices)
    return np.array(_RANK) if tensor is None else tensor.numpy()


def _detach(node: ir.Node, index: int) -> None:
    """Have a node that reads a cache read an empty one."""
    op = subgraph.Before(node)
    if node.op_type == _GROUPED:
        node.replace_input_with(index, None)
    elif node.op_type == "Concat":
        current = needed(node.inputs[1 - index])
        shape = current.shape
        subgraph.replace_node(node, current)
        current.shape = shape  # without the earlier tokens
    elif _is_time(node):
        subgraph.replace(node.outputs[0], op.integers([0]))
    else:
        for reader in list(node.outputs[0].consumers()):
            subgraph.replace(reader.outputs[0], op.integers(np.zeros_like(_places(reader)).tolist()))
