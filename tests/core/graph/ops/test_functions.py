from __future__ import annotations

import onnx
import onnx.parser
import pytest

from isorun.graph.ops import functions

OPERATORS = {"EmbedLayerNormalization", "SelfAttention", "SkipLayerNormalization", "BiasGelu", "BiasGeluTanh"}
TYPES = {"com.microsoft": {"", "com.microsoft"}, "onnx": {""}, "primitive": {""}}


def test_the_dialects():
    assert set(functions.dialects()) == {"com.microsoft", "onnx", "primitive"}
    assert functions.BODIES in functions.dialects()


WEIGHTS = pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])


@WEIGHTS
@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_dialect_says_what_every_operator_is_and_uses_its_own_domains(dialect, half):
    found = functions.functions(dialect, half=half)
    assert set(found) >= OPERATORS
    for name, function in found.items():
        assert (function.domain, function.name) == (functions.DOMAIN, name)
        assert {node.domain for node in function} <= TYPES[dialect] | {functions.DOMAIN}
        assert function.opset_imports[""] == functions.opset(dialect)


@WEIGHTS
@pytest.mark.parametrize("dialect", functions.dialects())
def test_an_operator_has_the_same_signature_in_every_dialect(dialect, half):
    meant = functions.functions(functions.BODIES)
    for name, function in functions.functions(dialect, half=half).items():
        for part in ("inputs", "outputs"):
            assert [v.name for v in getattr(function, part)] == [v.name for v in getattr(meant[name], part)]
        assert set(function.attributes) == set(meant[name].attributes)


@WEIGHTS
@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_node_is_an_operator_of_onnx_or_of_a_domain_that_says_so(dialect, half):
    for function in functions.functions(dialect, half=half).values():
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


@pytest.mark.parametrize("dialect", functions.dialects())
def test_what_is_the_same_in_fp16_is_said_once(dialect):
    """A function in ``dialects/half`` differs from the one of fp32."""
    plain, half = functions.functions(dialect), functions.functions(dialect, half=True)
    assert plain.keys() == half.keys()
    texts = [onnx.parser.parse_model(functions._text(f"half/{each}")) for each in functions._in_half() & {dialect}]
    differing = {name for name in plain if [n.op_type for n in plain[name]] != [n.op_type for n in half[name]]}
    assert {each.name for text in texts for each in text.functions} == differing
    assert (dialect == "com.microsoft") == (not differing)
