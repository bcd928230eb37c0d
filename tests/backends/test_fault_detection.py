"""What runtimes compute wrongly is known in a model however it is written."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from isorun import UnsupportedModel
from isorun.cli.doctor import operator_tests
from isorun.graph.io import maps
from isorun.graph.ops import inline
from isorun.graph.transforms import work_around
from isorun.plugin import faults, registry
from isorun.types.faults import Fault

NAMES = ("openvino", "ort-cpu", "reference")
ROWS = [
    pytest.param(row, id=f"{name}-{row.operator}-{index}")
    for name in NAMES
    for index, row in enumerate(faults.of(registry.get(name)).rows)
    if row.action != "documented"
]


def behind_a_node(model: onnx.ModelProto) -> None:
    """Nothing reads an input itself, whose type the model declares."""
    _copy(model.graph, [value.name for value in model.graph.input])


def with_wrong_sizes(model: onnx.ModelProto) -> None:
    """What it declares of its outputs has another rank."""
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            shape = output.type.tensor_type.shape
            shape.CopyFrom(onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=3)] * 6))


def in_a_function(model: onnx.ModelProto) -> None:
    graph, outputs = model.graph, [output.name for output in model.graph.output]
    inputs = [value.name for value in (*graph.input, *graph.initializer)]
    function = helper.make_function("own", "F", inputs, outputs, graph.node, model.opset_import)
    del graph.node[:]
    graph.node.append(helper.make_node("F", inputs, outputs, domain="own"))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))


def with_computed_constants(model: onnx.ModelProto) -> None:
    """Constants are written as what a runtime computes when it loads the model."""
    _copy(model.graph, [tensor.name for tensor in model.graph.initializer])


def _copy(graph: onnx.GraphProto, names: list[str]) -> None:
    """Have nodes read copies of values, made by ``Identity``."""
    copies = {name: f"{name}.copy" for name in names}
    for node in graph.node:
        node.input[:] = [copies.get(name, name) for name in node.input]
    nodes = [helper.make_node("Identity", [name], [copy]) for name, copy in copies.items()] + [*graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def beside_a_map(model: onnx.ModelProto) -> None:
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("chances", TensorProto.FLOAT, [None, 2]))
    graph.node.append(
        helper.make_node("ZipMap", ["chances"], ["classes"], domain="ai.onnx.ml", classlabels_int64s=[1, 2])
    )
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph.output.append(helper.make_value_info("classes", helper.make_sequence_type_proto(kind)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


def beside_a_sum_of_sizes(model: onnx.ModelProto) -> None:
    """Which ONNX's shape inference fails on."""
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["h", "w"]))
    graph.node.extend(
        [
            helper.make_node("Constant", [], ["steps"], value_ints=[0, 8, 16]),
            helper.make_node("Constant", [], ["size"], value_ints=[2, 1]),
            helper.make_node("Shape", ["image"], ["sizes"]),
            helper.make_node("Reshape", ["sizes", "size"], ["column"]),
            helper.make_node("Add", ["column", "steps"], ["places"]),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, None))


def outcome_of(row: Fault, *changes: Callable[[onnx.ModelProto], None]) -> str:
    proto = operator_tests.model_of(row)
    for change in changes:
        change(proto)
    model = maps.deserialize(proto)
    inline.inline(model)
    try:
        return "rewritten" if work_around.apply(model, [row]) else ""
    except UnsupportedModel:
        return "refused"


@pytest.mark.parametrize("row", ROWS)
def test_faults_are_seen_however_a_model_is_written(row: Fault) -> None:
    expected = outcome_of(row)
    assert expected
    for change in (with_wrong_sizes, beside_a_map, beside_a_sum_of_sizes):
        assert outcome_of(row, behind_a_node, change) == expected, change.__name__
    assert outcome_of(row, with_computed_constants) in (expected, "refused")
    nodes = operator_tests.model_of(row).graph.node
    if not any(attribute.HasField("g") for node in nodes for attribute in node.attribute):
        assert outcome_of(row, behind_a_node, in_a_function, with_wrong_sizes) == expected


@pytest.mark.parametrize(
    ("operator", "harmless"),
    [
        ("Div", {"z": np.array([2, 3], np.int32)}),
        ("STFT", {"n": np.array(4)}),
        ("Range", {"x": np.array(1), "d": np.array(1)}),
    ],
)
def test_a_default_that_feeds_may_replace_is_no_constant(operator: str, harmless: dict[str, np.ndarray]) -> None:
    row = next(row for row in faults.of(registry.get("ort-cpu")).rows if row.operator == operator)

    def with_defaults(model: onnx.ModelProto) -> None:
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in harmless.items())

    def without_inputs(model: onnx.ModelProto) -> None:
        inputs = [value for value in model.graph.input if value.name not in harmless]
        del model.graph.input[:]
        model.graph.input.extend(inputs)

    assert outcome_of(row, with_defaults)
    assert not outcome_of(row, with_defaults, without_inputs)
