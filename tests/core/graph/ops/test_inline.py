"""Functions, which every backend gets inlined, and those that import other versions of domains than their model."""

import numpy as np
import onnx
import pytest

import isorun
from isorun.errors import UnsupportedModel

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def model(opset: int, functions: str, call: str = "d.F (x)", imports: str = ', "d" : 1') -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}{imports}]> '
        f"g (float[a, b] x) => (float[c, e] y) <bool yes = {{1}}> {{ y = {call} }} {functions}"
    )


def function(opset: int, body: str, header: str = "F (x) => (y)", imports: str = "") -> str:
    return f'<domain: "d", opset_import: ["" : {opset}{imports}]> {header} {{ {body} }}'


def softmax(x: np.ndarray, axis: int | None) -> np.ndarray:
    powers = np.exp(x)
    return powers / powers.sum(axis, keepdims=True)


MODELS = {
    "the same operator": (model(17, function(13, "y = Softmax <axis = 1> (x)")), softmax(X, 1)),
    "the same operator, of an early opset": (model(17, function(12, "y = Celu (x)")), np.where(X > 0, X, np.expm1(X))),
    "a later opset": (model(13, function(17, "y = Relu (x)")), np.maximum(X, 0)),
    "axes that become an input": (
        model(18, function(13, "y = ReduceMean <axes = [1]> (x)")),
        X.mean(1, keepdims=True),
    ),
    "axes that become an attribute": (
        model(17, function(18, "a = Constant <value_ints = [1]> () y = ReduceMean (x, a)")),
        X.mean(1, keepdims=True),
    ),
    "another value for each call": (
        model(17, function(13, "y = Softmax <axis : int = @axis> (x)", "F <axis> (x) => (y)"), "d.F <axis = 0> (x)"),
        softmax(X, 0),
    ),
    "functions of three opsets": (
        model(
            17,
            function(13, "h = Softmax (x) y = d.G (h)", imports=', "d" : 2')
            + function(18, "a = Constant <value_ints = [0]> () y = ReduceMax (x, a)", "G (x) => (y)"),
        ),
        softmax(X, 1).max(0, keepdims=True),
    ),
    "in a branch": (
        model(
            17,
            function(13, "y = Softmax (x)"),
            "If (yes) <then_branch = t () => (z) { z = d.F (x) }, else_branch = e () => (z) { z = Neg (x) }>",
        ),
        softmax(X, 1),
    ),
    "an unused function": (
        model(17, function(17, "y = Neg (x)") + function(11, "y = Softmax (x)", "G (x) => (y)")),
        -X,
    ),
    "operators in functions alone": (model(17, function(11, "y = Softmax <axis = 0> (x)")), softmax(X, None)),
    "a domain that the model does not import": (
        model(
            17,
            function(17, "h = ai.onnx.ml.Binarizer (x) y = d.G (h)", imports=', "ai.onnx.ml" : 1, "d" : 1')
            + function(17, "y = ai.onnx.ml.Binarizer (x)", "G (x) => (y)", ', "ai.onnx.ml" : 3'),
        ),
        (X > 0).astype(np.float32),
    ),
    "the other name of ONNX's domain": (model(17, function(13, "y = Softmax (x)")), softmax(X, 1)),
}
del MODELS["operators in functions alone"][0].opset_import[0]  # all are in opset 11 then
for part in (MODELS["the other name of ONNX's domain"][0], *MODELS["the other name of ONNX's domain"][0].functions):
    part.opset_import[0].domain = "ai.onnx"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_a_function_means_what_its_own_opset_defines(backend: str, name: str) -> None:
    proto, expected = MODELS[name]
    if backend == "openvino" and "ai.onnx.ml" in {domain.domain for domain in proto.functions[0].opset_import}:
        pytest.skip("OpenVINO has no operators of ai.onnx.ml")
    with isorun.Session(proto, backend) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("refused", "operator"),
    [
        (model(17, function(11, "y = Softmax (x)")), "Softmax"),  # ONNX Runtime would compute that of opset 17
        (model(11, function(17, "y = Softmax (x)")), "Softmax"),
        (
            model(
                17,
                function(20, "y = Gelu <approximate : string = @form> (x)", "F <form> (x) => (y)"),
                'd.F <form = "tanh"> (x)',
            ),
            "Gelu",
        ),
        (
            model(
                18,
                function(13, "y = ReduceMean <axes : ints = @axes> (x)", "F <axes> (x) => (y)"),
                "d.F <axes = [1]> (x)",
            ),
            "ReduceMean",
        ),
        (
            model(17, function(17, "y = n.Own (x)", imports=', "n" : 2'), imports=', "d" : 1, "n" : 1'),
            "Own",
        ),
    ],
)
def test_refuses_a_function_that_the_opset_of_the_model_would_change(refused: onnx.ModelProto, operator: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        isorun.Session(refused, "ort-cpu")
    assert caught.value.operators == (operator,)
    assert "d.F" in str(caught.value)
