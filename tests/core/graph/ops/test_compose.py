"""One function of pieces: which definition answers, and which steps are taken."""

from collections import Counter

import onnx_ir as ir
import pytest

from isorun.graph.ops.compose import DOMAIN, Composer, opset, parse

HEADER = 'opset_import: ["" : 17, "isorun.fused" : 1, "isorun.optional" : 1]\n'
BASE = (
    HEADER
    + """
# An operator of two optional parts.
Whole <clipped> (x, bias) => (y)
{
  core = isorun.fused.Piece (x, bias)
  y = isorun.optional.Relu <when: int = @clipped> (core)
}
Piece (x, bias) => (y)
{
  twice = Add (x, x)
  same = Identity (twice)
  y = isorun.optional.Add (same, bias)
}
"""
)


def composed(input_count: int, attributes: dict[str, int], *texts: str) -> tuple[str, Counter[str]]:
    """The overload of a node of ``Whole`` with so many inputs, and the operators of the functions that it calls."""
    node = ir.node("Whole", [ir.Value(name=str(index)) for index in range(input_count)], attributes, domain=DOMAIN)
    composer = Composer([*texts, BASE])
    composer.call(node)
    called = Counter(inner.op_type for function in composer.functions.values() for inner in function.node)
    return node.overload, called


def test_steps_whose_inputs_or_attribute_are_absent_are_left_out() -> None:
    assert composed(1, {}) == ("", {"Piece": 1, "Add": 1})
    assert composed(2, {}) == ("bias", {"Piece_bias": 1, "Add": 2})
    assert composed(2, {"clipped": 1}) == ("bias+clipped", {"Piece_bias": 1, "Add": 2, "Relu": 1})
    assert composed(1, {"clipped": 0}) == composed(1, {})


def test_calls_may_be_arguments() -> None:
    text = "Two (x) => (y, z) { y, z = Split <axis = 1> (Add (Neg (x), Add (x, 2.0)), [3, 4]) }\n"
    (function,) = parse(HEADER + text).values()
    steps = {node.output[0]: (node.op_type, [*node.input]) for node in function.node if node.op_type != "Constant"}
    assert steps == {
        "y__1": ("Neg", ["x"]),
        "y__2": ("Add", ["x", "number_0"]),
        "y__3": ("Add", ["y__1", "y__2"]),
        "y": ("Split", ["y__3", "number_1"]),
    }


def test_an_override_answers_for_what_it_declares() -> None:
    override = HEADER + "Piece (x) => (y) { y = Neg (x) }\n"
    assert composed(1, {}, override) == ("", {"Piece": 1, "Neg": 1})
    assert composed(2, {}, override) == composed(2, {})  # a bias is not declared: the base's
    kernel = HEADER + "Whole (x) => (y) { y = Neg (x) }\n"
    assert composed(1, {}, kernel) == ("", {"Neg": 1})
    assert composed(1, {"clipped": 1}, kernel) == composed(1, {"clipped": 1})


def test_an_override_may_be_the_whole_operator() -> None:
    override = HEADER + "Whole <clipped> (x, bias) => (y) { y = isorun.optional.Mul (x, bias) }\n"
    assert composed(2, {"clipped": 1}, override) == ("bias+clipped", {"Mul": 1})


def test_a_piece_that_does_nothing_is_left_out() -> None:
    override = HEADER + "Piece (x) => (y) { y = Identity (x) }\n"
    overload, called = composed(1, {"clipped": 1}, override)
    assert (overload, called) == ("clipped", {"Relu": 1})


def test_functions_follow_those_that_they_call() -> None:
    composer = Composer([BASE])
    composer.call(ir.node("Whole", [ir.Value(name="x")], domain=DOMAIN))
    assert [name for _, name, _ in composer.functions] == ["Piece", "Whole"]


def test_an_unknown_operator_is_reported() -> None:
    composer = Composer([BASE])
    composer.call(ir.node("Unheard", [ir.Value(name="x")], domain=DOMAIN))
    assert composer.missing == {"Unheard"}


def test_an_attribute_that_no_definition_declares_is_reported() -> None:
    composer = Composer([BASE])
    composer.call(ir.node("Whole", [ir.Value(name="x")], {"window": 5}, domain=DOMAIN))
    assert composer.missing == {"Whole with window"}


def test_an_override_with_an_unknown_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="Piece has inputs"):
        Composer([HEADER + "Piece (x, window) => (y) { y = Add (x, window) }\n", BASE])


def test_a_text_without_a_header_is_rejected() -> None:
    with pytest.raises(ValueError, match="header"):
        parse("Piece (x) => (y) { y = Neg (x) }\n")


def test_a_text_states_its_opset() -> None:
    assert opset(BASE) == 17


def test_a_required_attribute_may_be_0() -> None:
    text = HEADER + "Whole <alpha> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }\n"
    node = ir.node("Whole", [ir.Value(name="x")], {"alpha": 0.0}, domain=DOMAIN)
    composer = Composer([text])
    composer.call(node)
    (function,) = composer.functions.values()
    assert [attribute.ref_attr_name for attribute in function.node[0].attribute] == ["alpha"]
