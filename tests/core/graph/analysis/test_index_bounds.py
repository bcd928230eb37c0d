"""Bounds of ids behind what exporters put between an input and its lookup."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from isorun.graph.analysis import index_bounds

LOWEST, HIGHEST = -(2**63), 2**63 - 1
HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
CONSTANTS = """float[5,1] t = {0,1,2,3,4}, int64[2] flat = {0,-1}, int64[1] all = {-1}, int64[1] axis = {1},
    int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64 minus = {-1}, int64 four = {4},
    int64 nine = {9}, int64 seven = {7}, int64 far = {1000}, int64[2] halves = {1,1}, int64 hundred = {-100}"""
FORMS = {  # the nodes between ids (?, 2) and the index j of a table of five rows
    "reshape": ("j = Reshape (ids, flat)", (-5, 4)),
    "flatten": ("j = Flatten (ids)", (-5, 4)),
    "unsqueeze": ("j = Unsqueeze (ids, axis)", (-5, 4)),
    "transpose": ("j = Transpose (ids)", (-5, 4)),
    "cast": ("k = Cast <to = 6> (ids) j = Cast <to = 7> (k)", (-5, 4)),
    "offset, as OPT's positions": ("j = Add (ids, two)", (-7, 2)),
    "offset first": ("j = Add (two, ids)", (-7, 2)),
    "sub": ("j = Sub (ids, one)", (-4, 5)),
    "sub from": ("j = Sub (three, ids)", (-1, 8)),
    "mul": ("j = Mul (ids, two)", (-2, 2)),
    "negative mul": ("k = Mul (ids, minus) j = Sub (k, one)", (-5, 4)),
    "neg": ("j = Neg (ids)", (-4, 5)),
    "div": ("j = Div (ids, two)", (-11, 9)),
    "clip": ("j = Clip (ids, zero, nine)", (LOWEST, 4)),
    "clip below": ("j = Clip (ids, zero)", (LOWEST, 4)),
    "min": ("j = Min (ids, three)", (-5, HIGHEST)),
    "max and min": ("k = Max (ids, zero) j = Min (k, three)", None),
    "mod": ("j = Mod (ids, four)", None),
    "where": ("c = Equal (ids, nine) j = Where (c, zero, ids)", (-5, 9)),
    "where, as the decoder's labels": ("c = Equal (ids, hundred) j = Where (c, zero, ids)", (-100, 4)),
    "where with not": ("c = Equal (ids, nine) d = Not (c) j = Where (d, ids, zero)", (-5, 9)),
    "counted from the end": ("c = Less (ids, zero) k = Add (ids, three) j = Where (c, k, ids)", (-8, 4)),
    "product with a mask of ids": ("c = Equal (ids, nine) d = Not (c) k = Cast <to = 7> (d) j = Mul (ids, k)", (-5, 9)),
    "split": ("a, b = Split <axis = 1> (ids, halves) j = Concat <axis = 0> (b, a)", (-5, 4)),
    "one column": ("j = Gather <axis = 1> (ids, one)", None),
    "both columns": (
        "a = Gather <axis = 1> (ids, zero) b = Gather <axis = 1> (ids, one) j = Concat <axis = 0> (a, b)",
        (-5, 4),
    ),
    "expand": ("s = Shape (ids) j = Expand (ids, s)", (-5, 4)),
    "square": ("j = Mul (ids, ids)", (-2, 2)),
    "large divisor": ("j = Div (ids, seven)", (-41, 34)),
    "a far number in place of 0": ("c = Equal (ids, far) j = Where (c, zero, ids)", (-5, 1000)),
    "remainder of a small table": ("j = Mod (ids, nine)", None),
}


def model(nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD} g (int64[N,2] ids) => (float[] y) <{CONSTANTS}> {{ {nodes} z = Gather (t, j) y = ReduceSum (z) }}"
    )


def bounds(proto: onnx.ModelProto) -> index_bounds.Bounds:
    return index_bounds.find(ir.serde.deserialize_model(proto).graph)


@pytest.mark.parametrize("form", FORMS)
def test_bounds_behind(form):
    nodes, expected = FORMS[form]
    assert bounds(model(nodes)).get("ids") == expected


@pytest.mark.parametrize("form", FORMS)
def test_bounds_refuse_nothing_that_onnx_runtime_runs(form):
    """What the bounds leave out fails; where all within them runs, the lookup is protected."""
    proto = model(FORMS[form][0])
    graph = ir.serde.deserialize_model(proto).graph
    by_input = index_bounds.find(graph)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    runs = {}
    onnxruntime.set_default_logger_severity(4)
    try:
        for number in range(-110, 20):
            try:
                session.run(None, {"ids": np.array([[number, number]])})
                runs[number] = True
            except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
                runs[number] = False
    finally:
        onnxruntime.set_default_logger_severity(2)
    low, high = by_input.get("ids", (-110, 19))
    assert not any(fits for number, fits in runs.items() if not low <= number <= high)
    if not index_bounds.unprotected(graph):
        assert all(fits for number, fits in runs.items() if low <= number <= high)


@pytest.mark.parametrize(
    "form", ["reshape", "cast", "mul", "div", "clip", "mod", "max and min", "split", "min", "clip below"]
)
def test_bounds_protect(form):
    graph = ir.serde.deserialize_model(model(FORMS[form][0])).graph
    assert not index_bounds.unprotected(graph)


@pytest.mark.parametrize("form", ["where, as the decoder's labels", "remainder of a small table"])
def test_unprotected_lookups(form):
    graph = ir.serde.deserialize_model(model(FORMS[form][0])).graph
    (lookup,) = index_bounds.unprotected(graph)
    assert lookup.node.op_type == "Gather"
