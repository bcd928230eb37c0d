"""An ``If`` that compares two equal lengths is replaced by a branch; any other stays."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import onnx_text
from isorun.graph.canonicalize import branches
from isorun.graph.pipeline import fuse
from rewrites import PLAIN, check, feeds, first

RNG = np.random.default_rng(0)
WEIGHTS = {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in ("u", "v")}
LENGTHS = """
    q = MatMul(x, u) k = MatMul(x, v)
    qs = Shape<start=1, end=2>(q) ks = Shape<start=1, end=2>(k) width = Shape<start=2>(k)
"""
THEN = "then_branch = t () => (float[b,s,4] z) { half = Constant<value = float {0.5}>() z = Mul(q, half) }"
ELSE = "else_branch = e () => (float[b,s,4] z) { half = Constant<value = float {0.25}>() z = Mul(k, half) }"


def model(condition: str, rest: str = f"y = If(c) <{THEN}, {ELSE}>") -> ir.Model:
    proto = onnx_text.graph(f"g (float[b,s,4] x) => (float[b,s,4] y) {{ {LENGTHS} {condition} {rest} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    return ir.serde.deserialize_model(proto)


def run(branched: ir.Model, length: int) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((2, length, 4)).astype(np.float32)
    return exports.run(branched, {"x": x})[0]


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("c = Equal(qs, ks)", "q"),
        ("d = Equal(qs, ks) c = Not(d)", "k"),
        ("d = Equal(qs, ks) n = Not(d) i = Cast<to = 6>(n) c = Cast<to = 9>(i)", "k"),
        ("c = Equal(qs, width)", None),
        ("c = Less(qs, ks)", None),
        ("n = Constant<value = int64[1] {200}>() m = Min(qs, n) c = Equal(m, ks)", None),
        ("one = Constant<value = int64[1] {1}>() r = Reshape(x, one) f = Cast<to = 7>(r) c = Equal(f, qs)", None),
    ],
    ids=["equal", "not equal", "cast", "of another size", "less", "of at most 200", "data"],
)
def test_takes_a_branch_that_is_decided(condition: str, taken: str | None) -> None:
    branched = model(condition)
    is_of_data = "Reshape" in condition
    before = None if is_of_data else [run(branched, length) for length in (1, 4, 7, 260)]
    branches.take(branched)
    kinds = [node.op_type for node in branched.graph]
    assert kinds.count("If") == (taken is None)
    if taken is not None:
        assert first(branched, "Mul").inputs[0] is next(
            value for node in branched.graph for value in node.outputs if value.name == taken
        )
    if before is not None:
        for expected, length in zip(before, (1, 4, 7, 260), strict=True):
            np.testing.assert_array_equal(run(branched, length), expected)


def test_branches_may_share_names() -> None:
    """Names are unique within a branch only."""
    branched = model("c = Equal(qs, ks)", f"r = If(c) <{THEN}, {ELSE}> m = If(c) <{THEN}, {ELSE}> y = Add(r, m)")
    before = run(branched, 5)
    branches.take(branched)
    assert not any(node.op_type == "If" for node in branched.graph)
    np.testing.assert_array_equal(run(branched, 5), before)


def test_fuses_an_attention_with_a_branch() -> None:
    """As DeBERTa-v2 has in every layer, of the lengths of queries and keys."""
    export = exports.model(PLAIN)
    for softmax in [node for node in export.graph if node.op_type == "Softmax"]:
        scores = softmax.inputs[0]
        assert scores is not None
        lengths = [ir.node("Shape", [scores], {"start": start, "end": start + 1}) for start in (2, 3)]
        equal = ir.node("Equal", [length.outputs[0] for length in lengths])
        parts = []
        for operator in ("Identity", "Neg"):
            node = ir.node(operator, [scores])
            node.outputs[0].name = "z"
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            parts.append(ir.Graph([], node.outputs, nodes=[node], name=operator))
        branch = ir.node("If", equal.outputs, {"then_branch": parts[0], "else_branch": parts[1]})
        export.graph.insert_before(softmax, [*lengths, equal, branch])
        softmax.replace_input_with(0, branch.outputs[0])
    _, report = check(export, feeds())
    assert report.complete, str(report)
    assert fuse(export).complete
