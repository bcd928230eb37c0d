import logging

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import isorun
from isorun.errors import UnsupportedModel
from isorun.graph.analysis import random_numbers

DROPOUT = (
    "r = Constant <value_float = {ratio}> ()  t = Constant <value = bool {{{training}}}> ()  y = Dropout (x, r, t)"
)
IN_BRANCH = """yes = Constant <value = bool {1}> ()
    y = If (yes) <then_branch = then () => (float[2, 3] a) { a = RandomNormal <shape = [2, 3]> () },
                  else_branch = other () => (float[2, 3] b) { b = Neg (x) }>"""


def model_of(nodes: str, more: str = "", functions: str = "") -> onnx.ModelProto:
    text = (
        f'<ir_version: 9, opset_import: ["" : 17, "mine" : 1]> g (float[2, 3] x{more}) => (float[2, 3] y) {{ {nodes} }}'
    )
    return onnx.parser.parse_model(text + functions)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (DROPOUT.format(ratio=0.5, training=1), "Dropout"),
        (DROPOUT.format(ratio=0.5, training=0), ""),
        (DROPOUT.format(ratio=0.0, training=1), ""),
        ("y = Dropout (x)", ""),
        ("t = Constant <value = bool {1}> ()  y = Dropout (x, , t)", "Dropout"),
        ("y = RandomUniformLike (x)", "RandomUniformLike"),
        ("z = Bernoulli (x)  y = Add (x, z)", "Bernoulli"),
        (IN_BRANCH, "RandomNormal"),
        ("y = Relu (x)", ""),
    ],
)
def test_finds_what_draws_random_numbers(nodes: str, expected: str) -> None:
    assert random_numbers.find(ir.serde.deserialize_model(model_of(nodes))) == expected


def test_a_mode_that_is_fed_is_the_callers_choice() -> None:
    model = model_of("y = Dropout (x, , t)", ", bool t")
    assert random_numbers.find(ir.serde.deserialize_model(model)) == ""


FUNCTION = '<domain: "mine", opset_import: ["" : 17]> noise (x) => (y) { n = RandomNormalLike (x)  y = Add (x, n) }'


@pytest.mark.parametrize(
    ("model", "operator"),
    [
        (model_of(DROPOUT.format(ratio=0.5, training=1)), "Dropout"),
        (model_of("y = mine.noise (x)", functions=FUNCTION), "RandomNormalLike"),
    ],
)
def test_a_session_says_so(model: onnx.ModelProto, operator: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), isorun.Session(model, "ort-cpu") as session:
        assert session.provenance.details["random"]["drawn_by"].startswith(operator)
        feeds = {"x": np.ones((2, 3), np.float32)}
        assert len({session.run(None, feeds)[0].tobytes() for _ in range(20)}) > 1
    assert any(f"draws random numbers, by the node {operator}" in line for line in caplog.messages)
    with pytest.raises(UnsupportedModel, match="random numbers"):
        isorun.Session(model, "ort-cpu", deterministic=True)
