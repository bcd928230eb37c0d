"""``Einsum`` of a value and a weight, as Keras and XLNet write their projections, is a dense layer.

The last axes of the value are contracted with the weight. Heads, which are axes of the weight, are split by ``Reshape``
after the product, or joined before it.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from isorun.graph.analysis.evaluate import array, is_constant, sizes
from isorun.graph.matching import subgraph


def rewrite(graph: ir.Graph) -> None:
    """Replace the products, in place. The graph's results are unchanged."""
    for node in list(graph):
        if node.domain != "" or node.op_type != "Einsum" or len(node.inputs) != 2:
            continue
        terms, _, result = node.attributes["equation"].as_string().replace(" ", "").partition("->")
        letters = terms.split(",")
        for value, weight, (of_value, of_weight) in zip(
            node.inputs, node.inputs[::-1], (letters, letters[::-1]), strict=True
        ):
            if value is None or weight is None or is_constant(value) or not is_constant(weight):
                continue
            kept = "".join(letter for letter in of_value if letter in result)
            contracted, new = of_value.removeprefix(kept), result.removeprefix(kept)
            is_dense = kept and contracted and new and (kept + contracted, kept + new) == (of_value, result)
            is_distinct = terms.replace(",", "").isalpha() and len({*of_value, *new}) == len(of_value + new)
            if is_dense and is_distinct and sorted(contracted + new) == sorted(of_weight):
                order = [of_weight.index(letter) for letter in contracted + new]
                _replace(node, value, weight, order, len(kept), len(contracted))


def _replace(node: ir.Node, value: ir.Value, weight: ir.Value, order: list[int], kept: int, contracted: int) -> None:
    """Replace a product.

    Args:
        node: the product.
        value: its operand.
        weight: what it is multiplied by.
        order: the axes of the weight: those that are contracted, in the order of the value's, and those of the result.
        kept: how many axes of the value come before those that are contracted.
        contracted: how many are contracted.
    """
    op, ordered = subgraph.Before(node), [sizes(weight)[axis] for axis in order]
    inputs, outputs = prod(ordered[:contracted]), prod(ordered[contracted:])

    def typed(result: ir.Value, *last: int) -> ir.Value:
        result.type, result.shape = value.type, ir.Shape([*[None] * kept, *last])
        return result

    def reshaped(rows: ir.Value, *last: int) -> ir.Value:
        return typed(op("Reshape", rows, [*[0] * kept, *last]), *last)

    tensor = subgraph.lazy(
        lambda: array(weight).transpose(order).reshape(inputs, outputs), subgraph.dtype(weight), (inputs, outputs)
    )
    rows = value if contracted == 1 else reshaped(value, inputs)
    columns = subgraph.constant(op.graph, f"{weight.name}.matrix", tensor)
    product = typed(op("MatMul", rows, columns), outputs)
    if len(order) > contracted + 1:
        product = reshaped(product, *ordered[contracted:])
    subgraph.replace_node(node, product)
