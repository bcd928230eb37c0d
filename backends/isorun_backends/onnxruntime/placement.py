"""Which provider runs which node, and rejecting sessions in which the requested provider does not run them all.

ONNX Runtime silently gives nodes that a provider does not take to another one. On a GPU, it runs small computations
with shapes on the CPU on purpose, because the host needs the result; any other node there means copies in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from isorun.plugin import Option, UnsupportedModel, runtime_errors
from isorun_backends.onnxruntime.session import require_placement

if TYPE_CHECKING:
    import onnx
    import onnxruntime

ALLOW_CPU_NODES = Option(
    "run nodes that the provider does not take on ONNX Runtime's CPU provider, instead of rejecting the model",
    "bool",
    default=False,
)
CpuNodes = Literal["none", "shapes", "integers"]
"""Which nodes may run on the CPU provider: none; those that compute with shapes and constants; or those, and what
computes indices and masks, from integers and booleans to integers and booleans."""
_CPU = "CPUExecutionProvider"
_SHAPES = frozenset({"Shape", "Size"})
_INTEGERS = frozenset(range(2, 8)) | {9, 12, 13}  # of onnx.TensorProto.DataType: the integers, and BOOL
_PRODUCTS = ("MatMul", "Conv", "Gemm", "Einsum")  # in the name of an operator: real work, in integers too
_PERMUTES = "Gather"  # what ONNX Runtime's layout optimizer permutes a shape by
_LIKE = "CastLike"  # uses only the type of its second input


class Node(NamedTuple):
    """A node and the provider that runs it. ``operator`` is ``domain.Name``, or ``Name`` of ONNX's own domain."""

    provider: str
    name: str
    operator: str


def assigned(name: str, session: onnxruntime.InferenceSession) -> list[Node]:
    """Every node as ONNX Runtime assigned it. Recorded before the last graph optimizations."""
    require_placement(name)
    with runtime_errors(f"{name} cannot report where its nodes run"):
        return [
            Node(part.ep_name, node.name, _operator(node.domain, node.op_type))
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]


def count(nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Provider to operators, and how many nodes of each the provider runs."""
    counts: dict[str, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(node.provider, Counter())[node.operator] += 1
    return {provider: dict(operators.most_common()) for provider, operators in counts.items()}


def shape_nodes(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of the nodes whose results follow from shapes, constants and types alone."""
    known = {initializer.name for initializer in graph.initializer} | {""}
    names = set()
    for node in graph.node:
        inputs = node.input[:1] if node.op_type == _LIKE else node.input
        if node.op_type in _SHAPES or all(name in known for name in inputs):
            known.update(node.output)
            names.add(node.name)
    return frozenset(names - {""})


def with_inserted(shapes: frozenset[str], graph_nodes: Collection[str], nodes: Iterable[Node]) -> frozenset[str]:
    """The nodes that compute with shapes, those among them that ONNX Runtime inserted included.

    When it moves a Transpose, it permutes the shapes that later nodes read by a Gather of its own.

    Args:
        shapes: :func:`shape_nodes` of the graph.
        graph_nodes: the names of all nodes of the graph.
        nodes: every node of the session.
    """
    return shapes | {node.name for node in nodes if node.operator == _PERMUTES and node.name not in graph_nodes}


def integer_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """The names of the nodes that compute indices and masks: integers and booleans from integers and booleans.

    Matrix products and convolutions are not among them.
    """
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    integers = {name for name, kind in types.items() if kind in _INTEGERS} | {""}
    return frozenset(
        node.name
        for node in graph.node
        if node.name
        and integers.issuperset((*node.input, *node.output))
        and not any(product in node.op_type for product in _PRODUCTS)
    )


def may_run_on_cpu(path: Path, kinds: CpuNodes, nodes: Collection[Node]) -> frozenset[str] | None:
    """The names of the nodes of a session that may run on the CPU provider; ``None`` for none.

    A change of layout replaces nodes by others of new names, or removes two that cancel out. A new node on the CPU
    counts as one that is missing and may run there, if there are as many of its operator.
    """
    if kinds == "none":
        return None
    import onnx

    with runtime_errors(f"cannot read {path}"):
        model = onnx.load(path, load_external_data=False)
        allowed = shape_nodes(model.graph) | (integer_nodes(model) if kinds == "integers" else frozenset())
    operators = {node.name: _operator(node.domain, node.op_type) for node in model.graph.node}
    missing = Counter(operators[name] for name in allowed.difference(node.name for node in nodes))
    new = {node.name: node.operator for node in nodes if node.name not in ("", *operators) and node.provider == _CPU}
    wanted = Counter(new.values())
    return allowed | {name for name, operator in new.items() if wanted[operator] <= missing[operator]}


def is_shape_node(node: Node, shapes: Collection[str]) -> bool:
    """Whether a node computes with shapes only; ``shapes`` is :func:`shape_nodes` of its graph."""
    return node.name in shapes or node.operator in _SHAPES


def require(
    name: str,
    provider: str,
    nodes: Iterable[Node],
    path: Path,
    *,
    allow_cpu_nodes: bool,
    shapes: Collection[str] | None = None,
    also: Collection[str] = (),
) -> None:
    """Reject a session in which another provider runs nodes, unless that is allowed.

    Args:
        provider: the requested provider, which has to run some node in any case.
        shapes: names of nodes that compute with shapes and may run anywhere; ``None`` to allow none.
        also: other providers that may run nodes.

    Raises:
        UnsupportedModel: with the operators that run elsewhere.
    """
    nodes = list(nodes)
    ran = {node.provider for node in nodes}
    others = Counter(
        node.operator
        for node in nodes
        if node.provider not in (provider, *also) and (shapes is None or not is_shape_node(node, shapes))
    )
    listed = ", ".join(f"{operator} ({number})" for operator, number in others.items())
    if provider not in ran and (others or not ran.isdisjoint(also)):
        raise UnsupportedModel(f"{name}: {provider} supports no node of {path}{listed and f': {listed}'}", others)
    if others and not allow_cpu_nodes:
        raise UnsupportedModel(
            f"{name}: {provider} does not support these nodes of {path}: {listed}. "
            "Set options={'allow_cpu_nodes': True} to run them on the CPU, or choose another backend",
            others,
        )


def _operator(domain: str, name: str) -> str:
    return f"{domain}.{name}" if domain not in ("", "ai.onnx") else name
