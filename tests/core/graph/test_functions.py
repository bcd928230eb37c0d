from __future__ import annotations

import onnx
import onnx.parser
import pytest

from isorun.graph import functions

OPERATORS = {"EmbedLayerNormalization", "SelfAttention", "SkipLayerNormalization", "BiasGelu", "BiasGeluTanh"}
TYPES = {"com.microsoft": {"", "com.microsoft"}, "onnx": {""}, "primitive": {""}}


def test_the_dialects():
    assert set(functions.dialects()) == {"com.microsoft", "onnx", "primitive"}
    assert functions.BODIES in functions.dialects()


@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_dialect_says_what_every_operator_is_and_uses_its_own_domains(dialect):
    found = functions.functions(dialect)
    assert set(found) >= OPERATORS
    for name, function in found.items():
        assert (function.domain, function.name) == (functions.DOMAIN, name)
        assert {node.domain for node in function} <= TYPES[dialect] | {functions.DOMAIN}
        assert function.opset_imports[""] == functions.opset(dialect)


@pytest.mark.parametrize("dialect", functions.dialects())
def test_an_operator_has_the_same_signature_in_every_dialect(dialect):
    meant = functions.functions(functions.BODIES)
    for name, function in functions.functions(dialect).items():
        for part in ("inputs", "outputs"):
            assert [v.name for v in getattr(function, part)] == [v.name for v in getattr(meant[name], part)]
        assert set(function.attributes) == set(meant[name].attributes)


@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_node_is_an_operator_of_onnx_or_of_a_domain_that_says_so(dialect):
    for function in functions.functions(dialect).values():
        for node in function:
            if node.domain == "":
                schema = onnx.defs.get_schema(node.op_type, functions.opset(dialect))
                assert schema.min_input <= len(node.inputs) <= schema.max_input


def test_the_primitive_dialect_has_no_fused_operator_of_onnx():
    used = {node.op_type for function in functions.functions("primitive").values() for node in function}
    assert not used & {"Attention", "LayerNormalization", "Gelu"}


def test_functions_are_the_callers_to_change():
    first = functions.functions("onnx")["BiasGelu"]
    first.remove(list(first)[-1])
    assert len(list(functions.functions("onnx")["BiasGelu"])) == len(list(first)) + 1
