"""Which nodes a GPU's provider left to the CPU, and whether that is how it has to be.

ONNX Runtime computes with shapes on the CPU on purpose: a few numbers of which the CPU has to know the result. Any
other node there means copies to the host and back in every run, and is an error unless it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from isorun.errors import BackendUnavailable

if TYPE_CHECKING:
    import onnx
    import onnxruntime

CPU = "CPUExecutionProvider"
_SHAPES = frozenset({"Shape", "Size"})
_LIKE = "CastLike"  # of its second input it takes the type
_SHOWN = 8


class OnCpu(NamedTuple):
    """Nodes on the CPU, as ``operator name``.

    Attributes:
        shapes: those that compute with shapes.
        others: those that compute with data.
    """

    shapes: tuple[str, ...]
    others: tuple[str, ...]


def on_cpu(assigned: Iterable[tuple[str, str, str]], shapes: frozenset[str]) -> OnCpu:
    """Sort the nodes on the CPU.

    Args:
        assigned: provider, name and operator of every node.
        shapes: names of the nodes that compute with shapes: :func:`shape_nodes`.
    """
    mine = [(name, operator) for provider, name, operator in assigned if provider == CPU]
    shape = tuple(f"{operator} {name}" for name, operator in mine if name in shapes or operator in _SHAPES)
    other = tuple(f"{operator} {name}" for name, operator in mine if not (name in shapes or operator in _SHAPES))
    return OnCpu(shape, other)


def assigned(session: onnxruntime.InferenceSession) -> list[tuple[str, str, str]]:
    """Provider, name and operator of every node, as ONNX Runtime assigned them."""
    return [
        (part.ep_name, node.name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def shape_nodes(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of the nodes whose results follow from shapes, constants and types alone."""
    known = {initializer.name for initializer in graph.initializer} | {""}
    found = set()
    for node in graph.node:
        read = node.input[:1] if node.op_type == _LIKE else node.input
        if node.op_type in _SHAPES or all(name in known for name in read):
            known.update(node.output)
            found.add(node.name)
    return frozenset(found - {""})


def refuse_others(name: str, provider: str, others: Sequence[str]) -> None:
    """Refuse nodes that compute with data on the CPU.

    Raises:
        BackendUnavailable: there are some; the reason names them.
    """
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise BackendUnavailable(
            name,
            f"{provider} left {len(others)} nodes to the CPU: {', '.join(others[:_SHOWN])}{more}",
            "options={'allow_cpu_nodes': True} has them run there, with copies in every run; "
            "or take a backend that runs the whole model.",
        )
