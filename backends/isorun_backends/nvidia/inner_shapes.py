"""The shapes of tensors inside a graph, for a range of input shapes.

ONNX Runtime cuts a graph at the nodes that TensorRT's parser does not support. What enters the parts then needs a range
as well, or ONNX Runtime rejects the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from isorun_backends.nvidia.shape_profiles import Profile, Range

if TYPE_CHECKING:
    import onnx

SEPARATORS = frozenset(":,")
"""Of names and shapes in ONNX Runtime's options, so that no name may contain them."""


def rename_inner_tensors(model: onnx.ModelProto) -> None:
    """Rename the tensors between nodes whose names contain :data:`SEPARATORS`, in place."""
    graph = model.graph
    outputs = {tensor.name for tensor in graph.output}
    computed = [name for node in graph.node for name in node.output]
    taken = {*computed, *(tensor.name for tensor in graph.input), *(tensor.name for tensor in graph.initializer)}
    names: dict[str, str] = {}
    for name in computed:
        if name not in outputs and not SEPARATORS.isdisjoint(name):
            plain = "".join("_" if character in SEPARATORS else character for character in name)
            while plain in taken:
                plain += "_"
            taken.add(plain)
            names[name] = plain
    _rename(graph.node, names)
    for tensor in graph.value_info:
        tensor.name = names.get(tensor.name, tensor.name)


def inner_shapes(model: onnx.ModelProto, profile: Profile) -> dict[str, Range]:
    """The minimum, optimum and maximum shape of the tensors between nodes, as far as they follow from the inputs'.

    Args:
        model: the graph; its weights are not needed.
        profile: the sizes of its symbolic dimensions.
    """
    minimum, optimum, maximum = (_inferred(model, profile, which) for which in range(3))
    return {
        name: (shape, optimum[name], maximum[name])
        for name, shape in minimum.items()
        if shape and name in optimum and name in maximum and SEPARATORS.isdisjoint(name)
    }


def _inferred(model: onnx.ModelProto, profile: Profile, which: int) -> dict[str, list[int]]:
    """The shapes that are known for one size of each symbolic dimension."""
    import onnx

    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for tensor in (*sized.graph.input, *sized.graph.value_info, *sized.graph.output):
        for size in tensor.type.tensor_type.shape.dim:
            if size.dim_param in profile.sizes:
                size.dim_value = profile.sizes[size.dim_param][which]
    complete = [tensor for tensor in sized.graph.value_info if _sizes(tensor) is not None]
    del sized.graph.value_info[:]  # inference does not replace a name by a number
    sized.graph.value_info.extend(complete)
    known: dict[str, list[int]] = {}
    while True:
        graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
        tensors = {tensor.name: _sizes(tensor) for tensor in (*graph.input, *graph.value_info)}
        shapes = {name: sizes for name, sizes in tensors.items() if sizes is not None}
        folded = _fold(sized, shapes)
        known |= folded
        if not folded:
            computed = {name for node in model.graph.node for name in node.output}
            return {name: shape for name, shape in (shapes | known).items() if name in computed}


def _sizes(tensor: onnx.ValueInfoProto) -> list[int] | None:
    """A tensor's shape; ``None`` if a part of it is unknown."""
    shape = tensor.type.tensor_type.shape.dim
    known = tensor.type.tensor_type.HasField("shape") and all(size.HasField("dim_value") for size in shape)
    return [size.dim_value for size in shape] if known else None


def _fold(model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Replace what is computed from known shapes by its value, which inference needs to know the size of a ``Range``;
    returns the shapes of these values."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    integers = (TensorProto.INT64, TensorProto.INT32)
    values: dict[str, Any] = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type in integers and not tensor.external_data
    }
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    kept, folded = [], []
    for node in model.graph.node:
        feeds = {name: values[name] for name in node.input if name in values}
        if node.op_type == "Shape" and node.input[0] in shapes:
            feeds[node.input[0]] = np.broadcast_to(np.int64(0), shapes[node.input[0]])
        if node.domain or len(node.output) != 1 or not node.input or any(name not in feeds for name in node.input):
            kept.append(node)
            continue
        output = node.output[0]
        graph = helper.make_graph([node], "part", [], [helper.make_empty_tensor_value_info(output)])
        (value,) = ReferenceEvaluator(graph, opsets).run(None, feeds)
        values[output] = np.asarray(value)
        folded.append(numpy_helper.from_array(values[output], output))
    model.graph.initializer.extend(folded)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return {tensor.name: list(tensor.dims) for tensor in folded}


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _rename(graph.node, names)
                for tensor in graph.output:
                    tensor.name = names.get(tensor.name, tensor.name)
