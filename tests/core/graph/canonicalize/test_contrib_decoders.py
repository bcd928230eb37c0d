"""ONNX Runtime's fused operators of decoders, taken apart, compute what its kernels compute."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
from isorun.graph.canonicalize import contrib
from isorun.graph.matching.report import FusionReport

BATCH, LENGTH, WIDTH, HEADS, GROUPS = 4, 7, 8, 4, 2
RANDOM = np.random.default_rng(0)
REAL = np.array([7, 3, 5, 1])
PACKED = "float[batch, sequence, 128] packed, int32[batch] last, int32 total"
APART = "float[batch, sequence, 64] q, float[batch, sequence, 32] k, float[batch, sequence, 32] v"
GROUPED = f"com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {GROUPS}"


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def numbers(values: np.ndarray, angles: int) -> str:
    return ", ".join(map(str, values[:, :angles].ravel()))


ANGLES = np.arange(16)[:, None] / 10.0 ** np.arange(8)
TABLES = {"cosines": np.cos(ANGLES), "sines": np.sin(ANGLES)}
FEEDS = {
    "x": normal(BATCH, LENGTH, WIDTH),
    "skip": normal(BATCH, LENGTH, WIDTH),
    "scale": normal(WIDTH),
    "packed": normal(BATCH, LENGTH, 128),
    "q": normal(BATCH, LENGTH, 64),
    "k": normal(BATCH, LENGTH, 32),
    "v": normal(BATCH, LENGTH, 32),
    "last": (REAL - 1).astype(np.int32),
    "total": np.array(LENGTH, np.int32),
    "positions": np.tile(np.arange(2, LENGTH + 2), (BATCH, 1)),
    "bias": normal(1, HEADS, LENGTH, LENGTH),
}
X = "float[batch, sequence, 8] x"
CASES = {
    "root mean square": (f"{X}, float[8] scale", "SimplifiedLayerNormalization <epsilon = 1e-6> (x, scale)"),
    "a sum": (
        f"{X}, float[batch, sequence, 8] skip, float[8] scale",
        "com.microsoft.SkipSimplifiedLayerNormalization (x, skip, scale, scale)",
    ),
    "rotation": (
        "float[batch, sequence, 64] q, int64[batch, sequence] positions",
        f"com.microsoft.RotaryEmbedding <num_heads = {HEADS}> (q, positions, cosines, sines)",
    ),
    "grouped queries": (PACKED, f"{GROUPED}> (packed, , , , , last, total)"),
    "grouped queries, rotated": (
        PACKED,
        f"{GROUPED}, do_rotary = 1, scale = 0.3> (packed, , , , , last, total, cosines, sines)",
    ),
    "grouped queries apart": (
        f"{APART}, int32[batch] last, int32 total, float[1, 4, sequence, sequence] bias",
        f"{GROUPED}> (q, k, v, , , last, total, , , , bias)",
    ),
    "in both directions": (PACKED, f"{GROUPED}, causal = 0> (packed, , , , , last, total)"),
}


def model_of(inputs: str, call: str, opset: int, angles: int = 8) -> onnx.ModelProto:
    """One operator, and the tables of a rotation with ``angles`` for each token."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    table = ", ".join(f"float[16, {angles}] {name} = {{{numbers(values, angles)}}}" for name, values in TABLES.items())
    result = "(float[batch, sequence, width] y)"
    return onnx.parser.parse_model(f"{header} g ({inputs}) => {result} <{table}> {{ y = {call} }}")


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("case", CASES)
def test_decomposed_operator_matches_the_kernel(case: str, opset: int) -> None:
    proto = model_of(*CASES[case], opset)
    model, report = ir.serde.deserialize_model(proto), FusionReport()
    contrib.expand(model, report)
    assert not report.refusals
    assert not [node for node in model.graph if node.domain or node.op_type.startswith("Simplified")]
    feeds = {value.name: FEEDS[value.name] for value in proto.graph.input}
    real = np.arange(LENGTH) < (REAL[:, None] if "last" in feeds else LENGTH)  # the kernel leaves the rest unset
    kernel, parts = exports.run(proto, feeds)[0], exports.run(model, feeds)[0]
    assert kernel.dtype == parts.dtype
    np.testing.assert_allclose(parts[real[: len(parts)]], kernel[real[: len(parts)]], rtol=0, atol=5e-6)


LEFT = {
    "a soft cap": (PACKED, f"{GROUPED}, softcap = 20.0> (packed, , , , , last, total)", "softcap"),
    "a window": (PACKED, f"{GROUPED}, local_window_size = 3> (packed, , , , , last, total)", "local_window_size"),
    "an unknown width": (PACKED.replace("128", "n"), f"{GROUPED}> (packed, , , , , last, total)", "the width of"),
}


@pytest.mark.parametrize("case", LEFT)
def test_reports_why_an_operator_is_kept(case: str) -> None:
    inputs, call, reason = LEFT[case]
    model, report = ir.serde.deserialize_model(model_of(inputs, call, 17)), FusionReport()
    contrib.expand(model, report)
    assert [node.op_type for node in model.graph] == ["GroupQueryAttention"]
    assert reason in report.refusals[0].reason


@pytest.mark.parametrize("case", ["rotation", "grouped queries, rotated"])
def test_keeps_a_rotation_of_a_part_of_each_head(case: str) -> None:
    inputs, call = CASES[case]
    proto = model_of(inputs, call, 17, angles=4)
    model = ir.serde.deserialize_model(proto)
    contrib.expand(model, FusionReport())
    assert [node.op_type for node in model.graph] == [proto.graph.node[0].op_type]


@pytest.mark.parametrize("setting", ["interleaved = 1", "scale = 2.0"])
def test_keeps_an_unusual_rotation(setting: str) -> None:
    inputs, call = CASES["rotation"]
    model = ir.serde.deserialize_model(model_of(inputs, call.replace("<", f"<{setting}, "), 17))
    contrib.expand(model, FusionReport())
    assert [node.op_type for node in model.graph] == ["RotaryEmbedding"]
