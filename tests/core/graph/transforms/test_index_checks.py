"""What bounds of the inputs do not protect is checked in the graph of a backend that does not check indices."""

from itertools import product

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import isorun
from isorun.errors import BackendFailed, InvalidFeeds, IsorunError, UnsupportedModel
from isorun.graph.analysis import index_bounds
from isorun.graph.transforms import index_checks

CONSTANTS = """float[5,1] t = {0,1,2,3,4}, float[4,2] p = {0,1,2,3,4,5,6,7}, int64 zero = {0}, int64 one = {1},
    int64 two = {2}, int64 hundred = {-100}, int64[1] axis = {1}, int64[1] axis_0 = {0}, int64[1] last = {-1},
    int64[1] pair = {2}, bool yes = {1}"""
COUNTED = """m = Equal (ids, one) n = Not (m) k = Cast <to = 6> (n) c = CumSum (k, one) d = Mul (c, k)
    e = Cast <to = 7> (d) f = Add (e, one)"""
RANGE = "s = Shape <start = 1, end = 2> (ids) l = Squeeze (s) r = Range (zero, l, one)"
FORMS = {
    "positions by length, offset 2 (BART)": f"{RANGE} j = Add (r, two) y = Gather (t, j)",
    "positions by length in a column": f"{RANGE} j = Unsqueeze (r, axis) y = Gather (p, j)",
    "positions counted (RoBERTa)": f"{COUNTED} y = Gather (t, f)",
    "labels (BART's decoder)": "c = Equal (ids, hundred) j = Where (c, zero, ids) y = Gather (t, j)",
    "two inputs": "j = Add (ids, more) y = Gather (t, j)",
    "GatherElements": "j = Add (ids, more) i = Reshape (j, last) k = Unsqueeze (i, axis) y = GatherElements (t, k)",
    "GatherND": "j = Add (ids, more) i = Reshape (j, last) k = Unsqueeze (i, axis) y = GatherND (t, k)",
    "ScatterND": """j = Add (ids, more) i = Reshape (j, last) k = Unsqueeze (i, axis) f = Cast <to = 1> (k)
        y = ScatterND (t, k, f)""",
    "ScatterElements": """j = Add (ids, more) i = Reshape (j, last) k = Unsqueeze (i, axis) f = Cast <to = 1> (k)
        y = ScatterElements (t, k, f)""",
    "rows of an input": "i = Reshape (ids, last) y = Gather (more, i)",
    "32 bits": "i = Cast <to = 6> (ids) m = Cast <to = 6> (more) j = Add (i, m) y = Gather (t, j)",
    "part of the input": "j = Slice (ids, axis_0, axis, axis) y = Gather (t, j)",
}
LOOP = "<body = l (int64 i, bool c, int64[A,B] x) => (bool d, int64[A,B] v"
LOOKED_UP = "o = Gather (t, v)"
SUBGRAPHS = {
    "If": """s = ReduceMax <keepdims = 0> (more) b = Greater (s, zero)
        z = If (b) <then_branch = a () => (float[A,B,1] r) { r = Gather (t, ids) },
        else_branch = e () => (float[A,B,1] q) { f = Cast <to = 1> (ids) q = Unsqueeze (f, pair) }>""",
    "the index is the result of an If": """s = ReduceMax <keepdims = 0> (more) b = Greater (s, zero)
        j = If (b) <then_branch = a () => (int64[A,B] r) { r = Add (ids, one) },
        else_branch = e () => (int64[A,B] q) { q = Mul (ids, more) }> z = Gather (t, j)""",
    "Loop": f"""w = Loop (two, yes, ids) {LOOP}) {{ d = Identity (c) v = Add (x, more) {LOOKED_UP} }}>
        z = Cast <to = 1> (w)""",
    "Loop with results of iterations": f"""w, z, e = Loop (two, yes, ids) {LOOP}, float[A,B,1] o, int64[A,B] q)
        {{ d = Identity (c) v = Add (x, more) {LOOKED_UP} q = Add (v, v) }}>""",
    "Loop that may not run": f"""n = ReduceMin <keepdims = 0> (more) w = Loop (n, yes, ids)
        {LOOP}) {{ d = Identity (c) g = Gather (t, x) h = Cast <to = 7> (g) e = Squeeze (h, pair) v = Add (e, one) }}>
        z = Cast <to = 1> (w)""",
    "Scan": "z = Scan <num_scan_inputs = 1, body = l (int64[A] x) => (float[A,1] o) { o = Gather (t, x) }> (ids)",
    "Scan with axes": """st = Gather (ids, zero) w, z = Scan <num_scan_inputs = 1, scan_output_axes = [0],
        scan_output_directions = [1], body = l (int64[A] s, int64[A] x) => (int64[A] r, float[A,1] o)
        { r = Identity (s) k = Add (x, x) o = Gather (t, k) }> (st, ids)""",
}


def model(form: str, opset: int = 17) -> onnx.ModelProto:
    kind = "int64" if form == "rows of an input" else "float"
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]> g (int64[N,M] ids, int64[N,M] more) => ({kind}[] y)
        <{CONSTANTS}> {{ {(FORMS | SUBGRAPHS)[form].replace(" y =", " z =")} u = Identity (more)
        y = ReduceSum <keepdims = 0> (z) }}"""
    )


def answer(session: isorun.Session, feeds: dict[str, np.ndarray]) -> float | None:
    try:
        return float(session.run(None, feeds)[0])
    except (InvalidFeeds, BackendFailed):
        return None


@pytest.mark.parametrize("form", [*FORMS, *SUBGRAPHS])
def test_refuses_what_onnx_runtime_refuses(form):
    proto = model(form)
    refused = 0
    with isorun.Session(proto, "ort-cpu") as right, isorun.Session(proto, "openvino") as checked:
        assert len(checked.provenance.details["graph"]["checked_indices"]) == 1
        for length, value, more in product((1, 3, 4, 5), (-100, -7, -6, -5, -1, 0, 3, 4, 5, 6), (0, 1, 3)):
            ids = np.full((2, length), value)
            feeds = {"ids": ids, "more": np.full_like(ids, more)}
            expected = answer(right, feeds)
            refused += expected is None
            if expected is None:
                with pytest.raises(InvalidFeeds):
                    checked.run(None, feeds)
            else:
                assert answer(checked, feeds) == expected, (length, value, more)
    assert refused


def test_a_lookup_that_does_not_run_bounds_nothing():
    ids = np.full((1, 1), 9)
    with isorun.Session(model("If"), "openvino") as session:
        assert session.run(None, {"ids": ids, "more": ids * 0})[0] == 9
        with pytest.raises(InvalidFeeds, match="outside its table"):
            session.run(None, {"ids": ids, "more": ids})


def test_bounds_follow_branches_with_the_same_elements():
    """PyTorch writes such an If around Squeeze."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64[N,M] ids, bool b) => (float[A,B,1] y)
        <float[5,1] t = {0,1,2,3,4}, int64[1] axis = {0}> {
            k = Unsqueeze (ids, axis)
            j = If (b) <then_branch = a () => (int64[A,B] r) { r = Squeeze (k, axis) },
                else_branch = e () => (int64[A,B] q) { m = Identity (ids) q = Identity (m) }>
            y = Gather (t, j) }"""
    )
    with isorun.Session(proto, "openvino") as session:
        assert list(session.provenance.details["graph"]) == ["worked_around"]  # and no lookups that the graph checks
        with pytest.raises(InvalidFeeds, match="from -5 to 4"):
            session.run(None, {"ids": np.array([[5]]), "b": np.array(True)})


def test_checks_lookups_in_functions():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (int64[N] ids, int64[N] more) => (float[N,1] y)
        <float[5,1] t = {0,1,2,3,4}> { j = Add (ids, more) y = own.look (t, j) }
        <domain: "own", opset_import: ["" : 17]> look (table, index) => (rows) { rows = Gather (table, index) }"""
    )
    with isorun.Session(proto, "openvino") as session:
        assert session.run(None, {"ids": np.array([1]), "more": np.array([2])})[0] == 3
        with pytest.raises(InvalidFeeds, match="outside its table"):
            session.run(None, {"ids": np.array([1]), "more": np.array([4])})


def test_refuses_a_lookup_whose_count_cannot_leave_its_body():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (seq(int64[N]) ids, int64[N] more) => (seq(float[N,1]) y)
        <float[5,1] t = {0,1,2,3,4}> {
            y = SequenceMap <body = l (int64[N] x) => (float[N,1] o) { o = Gather (t, x) }> (ids) }"""
    )
    proto.graph.node[0].attribute[0].g.node[0].name = "lookup"
    graph = ir.serde.deserialize_model(proto)
    with pytest.raises(UnsupportedModel, match="Gather 'lookup' reads may leave its table"):
        index_checks.add(graph, index_bounds.unprotected(graph.graph))


def test_names_the_node_and_stays_usable():
    proto = model("two inputs")
    proto.graph.node[1].name = "lookup"
    ids = np.zeros((1, 2), np.int64)
    with isorun.Session(proto, "openvino") as session:
        with pytest.raises(InvalidFeeds, match="index of -5 to 4 that Gather 'lookup' reads is outside its table in 1"):
            session.run(None, {"ids": ids, "more": np.array([[0, 7]])})
        assert session.run(None, {"ids": ids, "more": ids + 4})[0] == 8
        assert "recompiled" not in session.provenance.details


def test_io_binding_checks_indices():
    ids = np.zeros((1, 2), np.int64)
    more = ids.copy()
    with isorun.Session(model("two inputs"), "openvino") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("ids", ids)
        binding.bind_cpu_input("more", more)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        more[0, 1] = 5
        with pytest.raises(InvalidFeeds, match="outside its table"):
            session.run_with_iobinding(binding)


def test_protected_models_are_not_rewritten():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64[N,M] ids) => (float[N,M,1] y)
        <float[5,1] t = {0,1,2,3,4}> { y = Gather (t, ids) }"""
    )
    with isorun.Session(proto, "openvino") as session:
        assert "graph" not in session.provenance.details


def test_refuses_an_opset_that_cannot_express_the_check():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 9]> g (int64[N] ids, int64[N] more) => (float[N,1] y)
        <float[5,1] t = {0,1,2,3,4}> { j = Add (ids, more) y = Gather (t, j) }"""
    )
    with pytest.raises(IsorunError, match="may leave its table"):
        isorun.Session(proto, "openvino")


@pytest.mark.parametrize(
    ("body", "short"),
    [
        ("y = Gather (x, far)", 5),
        ("y = Gather (x, back)", 5),
        ("y = GatherND (x, place)", 5),
        (
            "y = If (k) <then_branch = t () => (float[q, b] u) { u = Gather (x, far) }, "
            "else_branch = e () => (float[p, b] v) { v = Identity (x) }>",
            5,
        ),
    ],
)
def test_a_place_of_the_model_that_short_rows_lack(body: str, short: int) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[a, b] x, bool k) => (float[] z)
        <int64[2] far = {{0, 7}}, int64[2] back = {{-1, -7}}, int64[2, 2] place = {{0, 1, 7, 1}}>
        {{ {body} z = ReduceSum <keepdims = 0> (y) }}"""
    )
    with isorun.Session(proto, "openvino") as session, isorun.Session(proto, "ort-cpu") as right:
        for rows in (short, 9):
            feeds = {"x": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2), "k": np.array(True)}
            if rows == short:
                with pytest.raises(InvalidFeeds):
                    session.run(None, feeds)
            else:
                np.testing.assert_allclose(session.run(None, feeds)[0], right.run(None, feeds)[0])
