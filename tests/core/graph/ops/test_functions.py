"""The operators' functions: what every dialect has, and what the fused form carries."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from isorun.graph.ops import functions

OWN = {"", "com.microsoft"}
DOMAINS = {"com.microsoft": OWN, "com.microsoft.cpu": OWN, "onnx": {""}, "primitive": {""}, "static": {""}}
WEIGHTS = pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
INPUTS = {
    "EmbedLayerNormalization": 8,
    "SelfAttention": 5,
    "AttentionCore": 5,
    "SingleQueryAttention": 5,
    "PackedAttention": 16,
    "SkipLayerNormalization": 5,
    "BiasGelu": 2,
    "BiasGeluTanh": 2,
}
OPTIONAL = {
    "EmbedLayerNormalization": (1, 5),
    **dict.fromkeys(("SelfAttention", "AttentionCore", "SingleQueryAttention"), (4,)),
    "PackedAttention": (12, 13, 14, 15),
}


def calls(opset: int, *, half: bool) -> ir.Model:
    """A model that calls each operator with all that is optional in it, and with nothing of that."""
    kind = ir.TensorType(ir.DataType.FLOAT16 if half else ir.DataType.FLOAT)
    value = ir.Value(name="x", type=kind, shape=ir.Shape(["rows", 4]))
    nodes = []
    for name, count in INPUTS.items():
        for absent in {(), OPTIONAL.get(name, ())}:
            inputs = [None if index in absent else value for index in range(count)]
            guarded = (
                {"guarded": 1} if not absent and name.endswith(("SelfAttention", "Core", "QueryAttention")) else {}
            )
            attributes: dict[str, float] = {}
            if "Normalization" in name:
                attributes = {"epsilon": 1e-5}
            elif "Attention" in name:
                attributes = {"num_heads": 2, "mask_filter_value": functions.LOWEST, **guarded}
            nodes.append(ir.node(name, inputs, attributes, domain=functions.DOMAIN))
    graph = ir.Graph([value], [], nodes=nodes, opset_imports={"": opset}, name="g")
    return ir.Model(graph, ir_version=10)


@WEIGHTS
@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_dialect_has_every_operator_in_its_own_domains(dialect: str, half: bool) -> None:
    model = calls(functions.opset(dialect), half=half)
    functions.put(model, dialect)
    assert {node.op_identifier() for node in model.graph} <= model.functions.keys()
    for function in model.functions.values():
        assert {node.domain for node in function} <= DOMAINS[dialect] | {functions.DOMAIN}
        assert function.opset_imports[""] == functions.opset(dialect)
        for node in function:
            if node.domain == "":
                schema = onnx.defs.get_schema(node.op_type, functions.opset(dialect))
                assert schema.min_input <= len(node.inputs) <= schema.max_input
                assert all(value is not None for value in node.inputs[: schema.min_input])


@WEIGHTS
def test_the_primitive_dialect_has_no_fused_operator_of_onnx(half: bool) -> None:
    model = calls(17, half=half)
    functions.put(model, "primitive")
    used = {node.op_type for function in model.functions.values() for node in function}
    assert not used & {"Attention", "LayerNormalization"}


def test_a_node_names_the_optional_parts_that_it_has() -> None:
    model = calls(17, half=False)
    functions.carry(model)
    overloads: dict[str, set[frozenset[str]]] = {}
    for node in model.graph:
        overloads.setdefault(node.op_type, set()).add(frozenset(node.overload.split("+")) - {"num_heads", "epsilon"})
    assert {frozenset(("qkv_bias",)), frozenset(("qkv_bias", "bias", "guarded"))} <= overloads["SelfAttention"]
    assert overloads["EmbedLayerNormalization"] == {
        frozenset(("position_ids", "beta")),
        frozenset(("position_ids", "beta", "token_type_ids")),
    }


def test_functions_that_nothing_calls_any_more_are_replaced() -> None:
    model = calls(17, half=False)
    functions.carry(model)
    for node in list(model.graph):
        if node.op_type != "BiasGelu":
            model.graph.remove(node)
    functions.carry(model)
    assert {name for _, name, _ in model.functions} == {"BiasGelu", "Gelu_like"}


def test_a_model_is_half_where_a_fused_operator_has_fp16_weights() -> None:
    assert functions.is_half(calls(17, half=True))
    assert not functions.is_half(calls(17, half=False))
    assert np.float32(functions.LOWEST) == functions.LOWEST
