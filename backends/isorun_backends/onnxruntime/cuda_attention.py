"""The forms in which a mask reaches ONNX Runtime's attention kernels for CUDA, and which one a batch may take.

``com.microsoft.Attention`` takes a mask in several forms, and which kernel it takes follows from the form (read in ONNX
Runtime 1.31; which one ran on a GPU has not been seen yet):

- ``lengths``, (B) int32: cuDNN's and the fused kernels. It means "the first n keys", so it is right for batches in
  which every row is padded on the right, or not at all, and has a key.
- ``bias``, added to the scores, (B, 1, S, S): CUTLASS's kernel, where S is a multiple of 8. In fp16 no number lowers
  every score of a row alike, so rows need at least one key.
- ``plain``, (B, S) int32 of 0 and 1: plain products and a softmax, in memory. Right for every mask.

All three are made from one lowered model; a batch's mask says which may run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

FORMS = ("plain", "bias", "lengths")
_MULTIPLE = 8  # of keys, for a bias to reach CUTLASS
_LOWEST_FP16 = -65504.0
_MASK, _BIAS = 3, 5  # inputs of com.microsoft.Attention
_POSITIONS = 8  # input of com.microsoft.EmbedLayerNormalization


@dataclass(frozen=True, slots=True)
class Forms:
    """One model in the forms that it can take.

    Attributes:
        models: by form, serialized; weights stay in the lowered model's folder. ``plain`` is always there.
        mask: the graph's input that becomes the mask; ``None`` where there is the plain form alone.
        why: why there is the plain form alone.
    """

    models: Mapping[str, bytes]
    mask: str | None
    why: str = ""


def choose(mask: np.ndarray) -> str:
    """The fastest form that is right for a mask (B, S), nonzero at keys."""
    real = mask != 0
    if real[:, 0].all() and not (real[:, 1:] > real[:, :-1]).any():
        return "lengths"
    if mask.shape[1] % _MULTIPLE == 0 and real.any(axis=1).all():
        return "bias"
    return "plain"


def allows(form: str, mask: np.ndarray) -> bool:
    """Whether a form is right for a mask."""
    best = choose(mask)
    if form == "lengths":
        return best == "lengths"
    return form == "plain" or bool((mask != 0).any(axis=1).all())


def forms(path: Path) -> Forms:
    """Make the forms of a lowered model.

    Args:
        path: the ONNX file. It is only read, and not its weights.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    _leave_positions_to_the_kernel(model.graph)
    plain = model.SerializeToString()
    nodes = [node for node in model.graph.node if _is(node, "Attention")]
    others = sorted({node.op_type for node in model.graph.node if node.op_type.endswith("Attention")} - {"Attention"})
    if not nodes or others:
        return Forms(
            {"plain": plain}, None, f"its attention is {' and '.join(others) or 'not com.microsoft.Attention'}"
        )
    masks = {_input(node, _MASK) for node in nodes}
    if len(masks) > 1 or "" in masks or any(_input(node, _BIAS) for node in nodes):
        return Forms({"plain": plain}, None, "its layers have masks of their own, or a bias on their scores")
    (mask,) = masks
    source = _source(model.graph, mask)
    if source is None:
        return Forms({"plain": plain}, None, f"its mask {mask!r} is not one of its inputs")
    made = {"plain": plain}
    for form, rewrite in (("bias", _to_bias), ("lengths", _to_lengths)):
        variant = onnx.ModelProto()
        variant.CopyFrom(model)
        rewrite(variant.graph, mask)
        made[form] = variant.SerializeToString()
    return Forms(made, source)


def _to_lengths(graph: onnx.GraphProto, mask: str) -> None:
    """The number of keys of each row: (B, S) -> (B)."""
    from onnx import helper

    made = [
        _constant("isorun.lengths.axis", np.array([1], np.int64)),
        helper.make_node("ReduceSum", [mask, "isorun.lengths.axis"], ["isorun.lengths"], "isorun.lengths", keepdims=0),
    ]
    _insert(graph, mask, made)
    for node in graph.node:
        if _is(node, "Attention"):
            node.input[_MASK] = "isorun.lengths"


def _to_bias(graph: onnx.GraphProto, mask: str) -> None:
    """What is added to the scores: (B, S) -> (B, 1, S, S). The dimension of queries is spread by adding a column of
    zeros, which needs no shape and so no work on the CPU."""
    from onnx import TensorProto, helper

    types = {initializer.name: initializer.data_type for initializer in graph.initializer}
    by_setting: dict[tuple[int, float], str] = {}
    for node in [node for node in graph.node if _is(node, "Attention")]:
        kind = types.get(node.input[1], TensorProto.FLOAT)
        lowest = next((a.f for a in node.attribute if a.name == "mask_filter_value"), -10000.0)
        if kind == TensorProto.FLOAT16:
            lowest = max(lowest, _LOWEST_FP16)
        if (kind, lowest) not in by_setting:
            name = f"isorun.bias.{len(by_setting)}"
            by_setting[kind, lowest] = name
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
            made = [
                _constant(f"{name}.keys", np.array([1, 2], np.int64)),
                _constant(f"{name}.queries", np.array([1, 3], np.int64)),
                _constant(f"{name}.nothing", np.zeros((), dtype)),
                _constant(f"{name}.lowest", np.array(lowest, dtype)),
                helper.make_node("Cast", [mask], [f"{name}.attend"], f"{name}.attend", to=TensorProto.BOOL),
                helper.make_node(
                    "Where", [f"{name}.attend", f"{name}.nothing", f"{name}.lowest"], [f"{name}.row"], f"{name}.row"
                ),
                helper.make_node("Unsqueeze", [f"{name}.row", f"{name}.keys"], [f"{name}.by_key"], f"{name}.by_key"),
                helper.make_node("Mul", [f"{name}.row", f"{name}.nothing"], [f"{name}.zeros"], f"{name}.zeros"),
                helper.make_node(
                    "Unsqueeze", [f"{name}.zeros", f"{name}.queries"], [f"{name}.column"], f"{name}.column"
                ),
                helper.make_node("Add", [f"{name}.by_key", f"{name}.column"], [name], name),
            ]
            _insert(graph, mask, made)
        inputs = [*node.input, *[""] * (_BIAS + 1 - len(node.input))]
        inputs[_MASK], inputs[_BIAS] = "", by_setting[kind, lowest]
        del node.input[:]
        node.input.extend(inputs)


def _leave_positions_to_the_kernel(graph: onnx.GraphProto) -> None:
    """Positions that are 0, 1, 2 and so on are what the kernel counts by itself: made in the graph, they would be made
    on the CPU and copied in every run."""
    import onnx

    producers = {name: node for node in graph.node for name in node.output}
    values = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.DEFAULT}

    def number(name: str) -> float | None:
        if name in values:
            array = onnx.numpy_helper.to_array(values[name])
            return float(array.reshape(-1)[0]) if array.size == 1 else None
        return None

    for node in graph.node:
        if not _is(node, "EmbedLayerNormalization") or not _input(node, _POSITIONS):
            continue
        maker = producers.get(node.input[_POSITIONS])
        while maker is not None and maker.op_type in ("Cast", "Unsqueeze", "Identity"):
            maker = producers.get(maker.input[0])
        if (
            maker is not None
            and maker.op_type == "Range"
            and (number(maker.input[0]), number(maker.input[2])) == (0, 1)
        ):
            del node.input[_POSITIONS:]
    _drop_unused(graph)


def _drop_unused(graph: onnx.GraphProto) -> None:
    wanted = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(_captured(node))
    unused = [tensor for tensor in graph.initializer if tensor.name not in wanted]
    for tensor in unused:
        graph.initializer.remove(tensor)
    if len(kept) < len(graph.node):
        nodes = list(reversed(kept))
        del graph.node[:]
        graph.node.extend(nodes)


def _captured(node: onnx.NodeProto) -> set[str]:
    """What the graphs inside a node may read of those around it."""
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner += [graph for attribute in node.attribute for graph in attribute.graphs]
    found = {output.name for graph in inner for output in graph.output}
    for graph in inner:
        for each in graph.node:
            found.update(each.input)
            found.update(_captured(each))
    return found


def _source(graph: onnx.GraphProto, value: str) -> str | None:
    """The graph's input that a mask is, but for its type; ``None`` where it is computed."""
    producers: dict[str, onnx.NodeProto] = {name: node for node in graph.node for name in node.output}
    names = {each.name for each in graph.input}
    while value not in names:
        node = producers.get(value)
        if node is None or node.op_type not in ("Cast", "Identity"):
            return None
        value = node.input[0]
    return value


def _is(node: onnx.NodeProto, operator: str) -> bool:
    return bool(node.domain == "com.microsoft" and node.op_type == operator)


def _input(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if len(node.input) > index else ""


def _constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(array, name)


def _insert(graph: onnx.GraphProto, after: str, made: Sequence[Message]) -> None:
    """Add constants, and nodes right behind the one that gives a value, or first where it is an input."""
    import onnx

    position = next((index for index, node in enumerate(graph.node) if after in node.output), -1) + 1
    for each in made:
        if isinstance(each, onnx.TensorProto):
            graph.initializer.append(each)
        elif isinstance(each, onnx.NodeProto):
            graph.node.insert(position, each)
            position += 1
