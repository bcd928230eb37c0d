"""Feed-forward layers in groups (SqueezeBERT): each group goes through its GELU alone.

Two layers of the same groups around an activation would join the groups' results, as wide as the layer, to split them
again at once.
"""

from __future__ import annotations

import onnx_ir as ir

from isorun.graph.analysis.evaluate import array, sizes
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions

_KINDS = ("BiasGelu", "BiasGeluTanh")


def keep_apart(graph: ir.Graph) -> None:
    """Rewrite ``Split(BiasGelu(Concat(parts), bias))``, in place. The graph's results are unchanged."""
    for node in list(graph):
        if functions.is_fused(node, *_KINDS):
            _keep_apart(node)


def _keep_apart(node: ir.Node) -> None:
    product, bias = node.inputs
    layer, uses = subgraph.projection(product), node.outputs[0].consumers()
    if product is None or bias is None or layer is None or layer.groups == 1 or node.outputs[0].is_graph_output():
        return
    joined = product.producer()
    if joined is None or len(uses) != 1 or uses[0].op_type != "Split" or uses[0].attributes.get_int("axis", 0) != -1:
        return
    (split,) = uses
    if len(split.inputs) > 1 or len(split.outputs) != layer.groups or subgraph.is_used_outside(product, {node}):
        return
    op, width = subgraph.Before(split), sizes(bias)[0] // layer.groups
    for index, (part, old) in enumerate(zip(joined.inputs, split.outputs, strict=True)):
        own = op.constant(f"{bias.name}.{index}", array(bias)[index * width : (index + 1) * width])
        subgraph.put(node.op_type, [part, own], {}, old)
    op.graph.remove([split, node, joined], safe=True)
