"""ONNX Runtime's fused operators, taken apart, compute what its kernels compute; and what its tools write is fused."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

import exports
from isorun.graph.canonicalize import contrib
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import lower
from isorun.graph.pipeline import fuse

BATCH, LENGTH, WIDTH, HEADS, INNER = 5, 7, 16, 4, 24
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def ints(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int32)


MASK = ints([1] * 7, [1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1], [0] * 7)
X, QKV, QKV_BIAS = normal(BATCH, LENGTH, WIDTH), normal(WIDTH, 3 * WIDTH) / 4, normal(3 * WIDTH)
Q, K, V = (normal(BATCH, LENGTH, WIDTH) for _ in range(3))
GAMMA, BETA, SCORES = normal(WIDTH), normal(WIDTH), normal(1, HEADS, LENGTH, LENGTH)
ZEROS = np.zeros(3 * WIDTH, np.float32)
LENGTHS = np.array([7, 3, 5, 4, 0], np.int32)
IDS = RANDOM.integers(0, 9, (BATCH, LENGTH)).astype(np.int32)
WORDS, PLACES, TYPES = normal(9, WIDTH), normal(LENGTH + 2, WIDTH), normal(2, WIDTH)


@dataclass(frozen=True)
class Node:
    """A node of an operator, and which of its outputs are used."""

    operator: str
    inputs: tuple[np.ndarray | None, ...]
    used: tuple[int, ...]
    attributes: dict[str, object]


def node(operator: str, *inputs: np.ndarray | None, used: tuple[int, ...] = (0,), **attributes: object) -> Node:
    return Node(operator, inputs, used, attributes)


def attention(*inputs: np.ndarray | None, used: tuple[int, ...] = (0,), **attributes: object) -> Node:
    return node("Attention", X, QKV, *inputs, used=used, num_heads=HEADS, **attributes)


def heads(*inputs: np.ndarray | None, **attributes: object) -> Node:
    return node("MultiHeadAttention", *inputs, num_heads=HEADS, **attributes)


def embedding(*inputs: np.ndarray | None, **attributes: object) -> Node:
    return node("EmbedLayerNormalization", IDS, *inputs, **attributes)


ENDS_AND_STARTS = np.concatenate([LENGTHS, np.array([0, 1, 2, 0, 0], np.int32)])
FOR_EACH_QUERY = np.tril(np.ones((BATCH, LENGTH, LENGTH), np.int32))
CASES = {
    "Gelu": node("Gelu", X),
    "BiasGelu": node("BiasGelu", X, BETA),
    "FastGelu": node("FastGelu", X),
    "FastGelu with a bias": node("FastGelu", X, BETA),
    "QuickGelu": node("QuickGelu", X),
    "QuickGelu, as SiLU": node("QuickGelu", X, alpha=1.0),
    "SkipLayerNormalization": node("SkipLayerNormalization", X, Q, GAMMA, BETA, epsilon=1e-5),
    "SkipLayerNormalization with a bias": node("SkipLayerNormalization", X, Q, GAMMA, BETA, GAMMA),
    "SkipLayerNormalization, its sum used": node("SkipLayerNormalization", X, Q, GAMMA, BETA, GAMMA, used=(0, 3)),
    "EmbedLayerNormalization": embedding(MASK, WORDS, PLACES, TYPES, GAMMA, BETA, MASK, used=(0, 1), epsilon=1e-5),
    "EmbedLayerNormalization by positions": embedding(
        None, WORDS, PLACES, None, GAMMA, BETA, MASK, (IDS + 1) % 9, used=(0, 1)
    ),
    "EmbedLayerNormalization, its sum used": embedding(None, WORDS, PLACES, None, GAMMA, BETA, MASK, used=(0, 1, 2)),
    "FusedMatMul": node("FusedMatMul", Q, K, alpha=0.25, transB=1),
    "FusedMatMul of a transposed": node("FusedMatMul", SCORES, SCORES, transA=1),
    "TransposeMatMul": node("TransposeMatMul", Q, K, alpha=0.5, transB=1),
    "FusedGemm": node("FusedGemm", X[0], QKV, QKV_BIAS, activation="Tanh"),
    "FusedGemm, scaled": node("FusedGemm", X[0], QKV.T, None, alpha=0.5, transB=1, activation="Relu"),
    "Attention": attention(QKV_BIAS),
    "Attention by lengths": attention(QKV_BIAS, LENGTHS),
    "Attention by ends and starts": attention(QKV_BIAS, ENDS_AND_STARTS, mask_filter_value=-3.4e38),
    "Attention by a mask": attention(QKV_BIAS, MASK),
    "Attention by a mask for each query": attention(QKV_BIAS, FOR_EACH_QUERY),
    "Attention with scores": attention(QKV_BIAS, MASK, None, SCORES, scale=0.3),
    "MultiHeadAttention": heads(Q, K, V),
    "MultiHeadAttention with a bias": heads(Q, K, V, QKV_BIAS, MASK),
    "MultiHeadAttention by lengths": heads(Q, K, V, None, LENGTHS, SCORES, scale=0.3),
}


def one_node(case: Node) -> tuple[onnx.ModelProto, exports.Feeds]:
    """A graph of one operator; weights are constants, everything else is fed."""
    feeds: exports.Feeds = {}
    constants, names = [], []
    fixed = {id(constant) for constant in (QKV, QKV_BIAS, GAMMA, BETA, ZEROS, WORDS, PLACES, TYPES)}
    for index, array in enumerate(case.inputs):
        names.append("" if array is None else f"in{index}")
        if array is None:
            continue
        if id(array) in fixed:
            constants.append(onnx.numpy_helper.from_array(array, names[-1]))
        else:
            feeds[names[-1]] = array
    outputs = [f"out{index}" if index in case.used else "" for index in range(max(case.used) + 1)]
    operator_node = onnx.helper.make_node(case.operator, names, outputs, domain=contrib.DOMAIN, **case.attributes)
    kinds = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}
    graph = onnx.helper.make_graph(
        [operator_node],
        "one",
        [
            onnx.helper.make_tensor_value_info(
                name, kinds[array.dtype], array.shape if array.ndim != 2 else ["batch", "sequence"]
            )
            for name, array in feeds.items()
        ],
        [onnx.helper.make_tensor_value_info(name, kinds[_kind(case.operator, name)], None) for name in outputs if name],
        constants,
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(contrib.DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def _kind(operator: str, output: str) -> np.dtype:
    return np.dtype(np.int32 if operator == "EmbedLayerNormalization" and output == "out1" else np.float32)


@pytest.mark.parametrize("case", CASES)
def test_decomposed_operator_matches_the_kernel(case: str) -> None:
    proto, feeds = one_node(CASES[case])
    model, report = ir.serde.deserialize_model(proto), FusionReport()
    contrib.expand(model, report)
    assert not report.refusals
    assert not [node for node in model.graph if node.domain]
    assert contrib.DOMAIN not in model.graph.opset_imports
    for kernel, parts in zip(exports.run(proto, feeds), exports.run(model, feeds), strict=True):
        assert kernel.dtype == parts.dtype
        np.testing.assert_allclose(parts, kernel, rtol=0, atol=5e-6 if case != "Attention by lengths" else 1e-3)


def test_missing_bias_is_zero() -> None:
    """ONNX Runtime 1.31.1 itself crashes without one."""
    proto, feeds = one_node(attention(None, MASK))
    model = ir.serde.deserialize_model(proto)
    contrib.expand(model, FusionReport())
    with_zeros, _ = one_node(attention(ZEROS, MASK))
    np.testing.assert_allclose(exports.run(model, feeds)[0], exports.run(with_zeros, feeds)[0], rtol=0, atol=5e-6)


PACKED, STATE = normal(BATCH, LENGTH, HEADS, 3, 4), normal(2, BATCH, HEADS, 3, 4)
SKIP, EMBED = "SkipLayerNormalization", "EmbedLayerNormalization"
LEFT = {
    "causal": (attention(QKV_BIAS, unidirectional=1), "SelfAttention", "is causal"),
    "a state": (attention(QKV_BIAS, None, STATE, used=(0, 1)), "SelfAttention", "Attention has a state"),
    "rotary": (attention(QKV_BIAS, do_rotary=1), "SelfAttention", "rotary"),
    "packed": (heads(PACKED), "SelfAttention", "no input 1"),
    "8 bits": (node("QAttention", X.astype(np.int32), QKV), "SelfAttention", "com.microsoft.QAttention"),
    "BiasSplitGelu": (node("BiasSplitGelu", X, BETA), "BiasGelu", "com.microsoft.BiasSplitGelu"),
    "a mean": (node(SKIP, X, Q, GAMMA, BETA, used=(0, 1)), SKIP, "the mean or the deviation"),
    "a count of no mask": (embedding(None, WORDS, PLACES, None, GAMMA, BETA, used=(0, 1)), EMBED, "without a mask"),
}


@pytest.mark.parametrize("name", LEFT)
def test_reports_why_an_operator_is_kept(name: str) -> None:
    case, kind, reason = LEFT[name]
    model, report = ir.serde.deserialize_model(one_node(case)[0]), FusionReport()
    contrib.expand(model, report)
    assert [node.op_type for node in model.graph] == [case.operator]
    (refusal,) = report.refusals
    assert refusal.kind == kind
    assert reason in refusal.reason


def optimized(label: str, tmp_path: Path, **options: bool) -> bytes:
    """An export by ONNX Runtime's optimizer for transformers."""
    (tmp_path / "model.onnx").write_bytes(exports.content(label))
    chosen = FusionOptions("bert")
    for name, value in options.items():
        setattr(chosen, name, value)
    optimized_model = optimizer.optimize_model(
        str(tmp_path / "model.onnx"),
        model_type="bert",
        num_heads=4,
        hidden_size=32,
        opt_level=0,
        optimization_options=chosen,
    )
    return optimized_model.model.SerializeToString()


def serialized(label: str, tmp_path: Path) -> bytes:
    """An export as ONNX Runtime writes what it has optimized itself."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.optimized_model_filepath = str(tmp_path / "extended.onnx")
    settings.log_severity_level = 3  # it warns that the file is for this machine
    onnxruntime.InferenceSession(exports.content(label), settings, providers=["CPUExecutionProvider"])
    return (tmp_path / "extended.onnx").read_bytes()


def assert_fused_whole(content: bytes, label: str) -> ir.Model:
    """It comes to the fused form, and answers as it did. Scores of a row without any key, lowered by 10,000, are
    rounded to thousandths: there the last row is compared loosely."""
    model = ir.serde.deserialize_model(onnx.load_from_string(content))
    report = fuse(model)
    assert report.complete, str(report)
    assert report.fused["SelfAttention"] == exports.manifest()[label]["layers"]
    feeds = exports.given(label)
    expected, got = exports.run(content, feeds), exports.run(model, feeds)
    assert exports.difference([output[:4] for output in expected], [output[:4] for output in got]) < exports.TOLERANCE
    finite = {
        node.attributes["mask_filter_value"].as_float() for node in model.graph if node.op_type == "SelfAttention"
    }
    assert exports.difference(expected, got) < (0.01 if -10000.0 in finite else exports.TOLERANCE)
    return model


OPTIMIZED = [
    "albert-torchscript14-eager",
    "bert-torchscript17-eager",
    "bert-qa-dynamo18-eager",
    "bert-dynamo23-sdpa",
    "bert-tf2onnx13",
    "distilbert-torchscript17-eager",
    "mpnet-dynamo18-eager",
    "roberta-torchscript14-eager",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", OPTIMIZED)
def test_fuses_graphs_of_the_transformers_optimizer(label: str, tmp_path: Path) -> None:
    assert_fused_whole(optimized(label, tmp_path), label)


@pytest.mark.parametrize(
    "options",
    [{"attention_mask_format": 2}, {"use_multi_head_attention": True}, {"enable_gelu_approximation": True}],
    ids=lambda options: next(iter(options)),
)
def test_fuses_graphs_of_the_optimizer_with_other_options(options: dict[str, bool], tmp_path: Path) -> None:
    label = "bert-torchscript17-eager"
    content = optimized(label, tmp_path, **options)
    assert any(
        node.domain == contrib.DOMAIN and "Attention" in node.op_type
        for node in onnx.load_from_string(content).graph.node
    )
    assert_fused_whole(content, label)


def test_keeps_a_mask_count_of_the_optimizer(tmp_path: Path) -> None:
    """The optimizer's own answer for left padding and holes is another than its source's: it is kept, not mended."""
    label = "bert-torchscript17-eager"
    content = optimized(label, tmp_path)
    model = assert_fused_whole(content, label)
    (mask,) = {node.inputs[1] for node in model.graph if node.op_type == "SelfAttention"}
    assert not mask.is_graph_input()
    untouched, got = exports.answers(label), exports.run(model, exports.given(label))
    assert exports.difference([output[:2] for output in untouched], [output[:2] for output in got]) < exports.TOLERANCE
    assert exports.difference([output[2:4] for output in untouched], [output[2:4] for output in got]) > 0.1


FIXED = [label for label, entry in exports.manifest().items() if entry["archive"] == "fixed"]
"""Of fixed shapes: there, dense layers become ``Gemm`` of flattened rows."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "label", [*OPTIMIZED, *FIXED, "camembert-dynamo23-eager", "electra-sequence-torchscript17-sdpa"]
)
def test_fuses_graphs_serialized_by_onnx_runtime(label: str, tmp_path: Path) -> None:
    assert_fused_whole(serialized(label, tmp_path), label)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dialect", ["com.microsoft", "onnx", "primitive"])
@pytest.mark.parametrize(
    "label", ["bert-torchscript17-eager", "mpnet-dynamo18-eager", "roberta-torchscript17-sdpa", "qwen3-dynamo18-eager"]
)
def test_fusing_a_lowered_graph_restores_it(label: str, dialect: str) -> None:
    model = exports.fused(label)
    before = exports.digest(model)
    lowered = ir.serde.serialize_model(lower.lower(model, dialect)).SerializeToString()
    again = ir.serde.deserialize_model(onnx.load_from_string(lowered))
    report = fuse(again)
    assert report.complete, str(report)
    assert exports.digest(again) == before
