"""Loops and branches, and what is computed behind them."""

import numpy as np
import onnx
import onnx.parser
import pytest

import isorun
from isorun_backends.nodes import GATES
from onnx_text import graph

SHAPES = ((2, 8), (1, 16), (8, 64), (1, 2), (16, 64))  # memory grows
BEHIND = "s = Softmax (h) f = MatMul (s, wide) y = MatMul (f, narrow)"  # the first is larger than the values before it
BRANCHES = """h = If (c) <
    then_branch = t () => (float[d, e, f] n) { n = Neg (x) },
    else_branch = u () => (float[g, h, i] p) { p = Abs (x) }>"""
MODELS = {
    "branches": f"{BRANCHES} {BEHIND} z = Neg (y)",
    "branches in a branch": f"""z = If (c) <
        then_branch = v () => (float[j, k, l] q) {{ q = Neg (x) }},
        else_branch = w () => (float[m, n, o] y) {{ {BRANCHES} {BEHIND} }}>""",
    "branches in a loop": f"""going0 = Not (c) last, z = Loop <
        body = v (int64 i, bool going, float k) => (bool still, float k2, float[l, m, n] y) {{
            still = Identity (going) k2 = Identity (k) {BRANCHES} {BEHIND}
        }}> (two, going0, limit)""",
    **{
        operator: f"o = {operator} <hidden_size = 4> (x, r{gates}, r{gates}) h = Squeeze (o, one) {BEHIND} z = Neg (y)"
        for operator, gates in GATES.items()
    },
}


def model_of(body: str) -> onnx.ModelProto:
    """A model with a condition that does not hold."""
    model = graph(f"""g (float[a, b, 4] x) => (float z)
        <float limit = {{9}}, int64 two = {{2}}, int64[1] one = {{1}}> {{
        m = ReduceMax <keepdims = 0> (x) c = Greater (m, limit) {body}
    }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(1)
    shapes = {"wide": (4, 600), "narrow": (600, 4), **{f"r{gates}": (1, 4 * gates, 4) for gates in GATES.values()}}
    for name, shape in shapes.items():
        weights = random.standard_normal(shape, np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_first_run_of_a_shape(name: str) -> None:
    model, random = model_of(MODELS[name]), np.random.default_rng(0)
    with isorun.Session(model, "openvino") as session, isorun.Session(model, "reference") as oracle:
        for sizes in SHAPES:
            feeds = {"x": random.standard_normal((*sizes, 4), np.float32)}
            np.testing.assert_allclose(
                session.run(None, feeds), oracle.run(None, feeds), atol=1e-4, rtol=1e-4, err_msg=str(sizes)
            )


def test_fixed_sizes_stay_known() -> None:
    text = "g (float[2, 4] x, bool c) => (float[2, 4] y) { y = If (c) <%s, %s> }"
    branches = (
        "then_branch = t () => (float[2, 4] n) { n = Neg (x) }",
        "else_branch = u () => (float[2, 4] p) { p = Abs (x) }",
    )
    with isorun.Session(graph(text % branches), "openvino") as session:
        assert session.provenance.details.get("graph", {}).get("worked_around", []) == []
        x = -np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(False)})[0], -x)


def test_early_opset_collects_results() -> None:
    """The equivalent of a loop reads what operators of that opset do not have as inputs."""
    model = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["": 9]>
        g (float[4] x, int64 n) => (float[4] y, float[K, 4] z) <bool yes = {1}> {
            y, z = Loop (n, yes, x) <body = b (int64 i, bool k, float[4] s) => (bool k2, float[4] s2, float[4] o) {
                k2 = Identity (k) s2 = Add (s, s) o = Identity (s2)
            }>
        }""")
    x = np.arange(4, dtype=np.float32)
    with isorun.Session(model, "openvino") as session:
        for count in (2, 0):
            _, results = session.run(None, {"x": x, "n": np.array(count)})
            np.testing.assert_array_equal(results, np.reshape([x * 2, x * 4][:count], (count, 4)))
