"""ONNX Runtime's fused operators, taken apart, compute what its kernels compute; and what its tools write is fused."""

from __future__ import annotations

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

Inputs = list[np.ndarray | None]
CASES: dict[str, tuple[str, Inputs, dict[str, object], tuple[int, ...]]] = {
    "Gelu": ("Gelu", [X], {}, (0,)),
    "BiasGelu": ("BiasGelu", [X, BETA], {}, (0,)),
    "FastGelu": ("FastGelu", [X], {}, (0,)),
    "FastGelu with a bias": ("FastGelu", [X, BETA], {}, (0,)),
    "SkipLayerNormalization": ("SkipLayerNormalization", [X, Q, GAMMA, BETA], {"epsilon": 1e-5}, (0,)),
    "SkipLayerNormalization with a bias": ("SkipLayerNormalization", [X, Q, GAMMA, BETA, GAMMA], {}, (0,)),
    "SkipLayerNormalization, its sum used": ("SkipLayerNormalization", [X, Q, GAMMA, BETA, GAMMA], {}, (0, 3)),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        [IDS, MASK, WORDS, PLACES, TYPES, GAMMA, BETA, MASK],
        {"epsilon": 1e-5},
        (0, 1),
    ),
    "EmbedLayerNormalization by positions": (
        "EmbedLayerNormalization",
        [IDS, None, WORDS, PLACES, None, GAMMA, BETA, MASK, (IDS + 1) % 9],
        {},
        (0, 1),
    ),
    "EmbedLayerNormalization, its sum used": (
        "EmbedLayerNormalization",
        [IDS, None, WORDS, PLACES, None, GAMMA, BETA, MASK],
        {},
        (0, 1, 2),
    ),
    "FusedMatMul": ("FusedMatMul", [Q, K], {"alpha": 0.25, "transB": 1}, (0,)),
    "FusedMatMul of a transposed": ("FusedMatMul", [SCORES, SCORES], {"transA": 1}, (0,)),
    "TransposeMatMul": ("TransposeMatMul", [Q, K], {"alpha": 0.5, "transB": 1}, (0,)),
    "FusedGemm": ("FusedGemm", [X[0], QKV, QKV_BIAS], {"activation": "Tanh"}, (0,)),
    "FusedGemm, scaled": ("FusedGemm", [X[0], QKV.T, None], {"alpha": 0.5, "transB": 1, "activation": "Relu"}, (0,)),
    "Attention": ("Attention", [X, QKV, QKV_BIAS], {"num_heads": HEADS}, (0,)),
    "Attention by lengths": ("Attention", [X, QKV, QKV_BIAS, LENGTHS], {"num_heads": HEADS}, (0,)),
    "Attention by ends and starts": (
        "Attention",
        [X, QKV, QKV_BIAS, np.concatenate([LENGTHS, np.array([0, 1, 2, 0, 0], np.int32)])],
        {"num_heads": HEADS, "mask_filter_value": -3.4e38},
        (0,),
    ),
    "Attention by a mask": ("Attention", [X, QKV, QKV_BIAS, MASK], {"num_heads": HEADS}, (0,)),
    "Attention by a mask for each query": (
        "Attention",
        [X, QKV, QKV_BIAS, np.tril(np.ones((BATCH, LENGTH, LENGTH), np.int32))],
        {"num_heads": HEADS},
        (0,),
    ),
    "Attention with scores": (
        "Attention",
        [X, QKV, QKV_BIAS, MASK, None, SCORES],
        {"num_heads": HEADS, "scale": 0.3},
        (0,),
    ),
    "MultiHeadAttention": ("MultiHeadAttention", [Q, K, V], {"num_heads": HEADS}, (0,)),
    "MultiHeadAttention with a bias": ("MultiHeadAttention", [Q, K, V, QKV_BIAS, MASK], {"num_heads": HEADS}, (0,)),
    "MultiHeadAttention by lengths": (
        "MultiHeadAttention",
        [Q, K, V, None, LENGTHS, SCORES],
        {"num_heads": HEADS, "scale": 0.3},
        (0,),
    ),
}


Case = tuple[str, Inputs, dict[str, object], tuple[int, ...]]


def one_node(case: Case) -> tuple[onnx.ModelProto, exports.Feeds]:
    """A graph of one operator; weights are constants, everything else is fed."""
    operator, arrays, attributes, used = case
    feeds: exports.Feeds = {}
    constants, names = [], []
    fixed = {id(each) for each in (QKV, QKV_BIAS, GAMMA, BETA, ZEROS, WORDS, PLACES, TYPES)}
    for index, array in enumerate(arrays):
        names.append("" if array is None else f"in{index}")
        if array is None:
            continue
        if id(array) in fixed:
            constants.append(onnx.numpy_helper.from_array(array, names[-1]))
        else:
            feeds[names[-1]] = array
    outputs = [f"out{index}" if index in used else "" for index in range(max(used) + 1)]
    node = onnx.helper.make_node(operator, names, outputs, domain=contrib.DOMAIN, **attributes)
    kinds = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [
            onnx.helper.make_tensor_value_info(
                name, kinds[array.dtype], array.shape if array.ndim != 2 else ["batch", "sequence"]
            )
            for name, array in feeds.items()
        ],
        [onnx.helper.make_tensor_value_info(name, kinds[_kind(operator, name)], None) for name in outputs if name],
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
    attributes: dict[str, object] = {"num_heads": HEADS}
    proto, feeds = one_node(("Attention", [X, QKV, None, MASK], attributes, (0,)))
    model = ir.serde.deserialize_model(proto)
    contrib.expand(model, FusionReport())
    with_zeros, _ = one_node(("Attention", [X, QKV, ZEROS, MASK], attributes, (0,)))
    np.testing.assert_allclose(exports.run(model, feeds)[0], exports.run(with_zeros, feeds)[0], rtol=0, atol=5e-6)


LEFT: dict[str, tuple[Case, str, str]] = {
    "causal": (
        ("Attention", [X, QKV, QKV_BIAS], {"num_heads": HEADS, "unidirectional": 1}, (0,)),
        "SelfAttention",
        "is causal",
    ),
    "a state": (
        ("Attention", [X, QKV, QKV_BIAS, None, normal(2, BATCH, HEADS, 3, 4)], {"num_heads": HEADS}, (0, 1)),
        "SelfAttention",
        "Attention has a state",
    ),
    "rotary": (
        ("Attention", [X, QKV, QKV_BIAS], {"num_heads": HEADS, "do_rotary": 1}, (0,)),
        "SelfAttention",
        "rotary",
    ),
    "packed": (
        ("MultiHeadAttention", [normal(BATCH, LENGTH, HEADS, 3, 4)], {"num_heads": HEADS}, (0,)),
        "SelfAttention",
        "no input 1",
    ),
    "8 bits": (
        ("QAttention", [X.astype(np.int32), QKV], {"num_heads": HEADS}, (0,)),
        "SelfAttention",
        "com.microsoft.QAttention",
    ),
    "QuickGelu": (("QuickGelu", [X], {}, (0,)), "BiasGelu", "com.microsoft.QuickGelu"),
    "a mean": (
        ("SkipLayerNormalization", [X, Q, GAMMA, BETA], {}, (0, 1)),
        "SkipLayerNormalization",
        "the mean or the deviation",
    ),
    "a count of no mask": (
        ("EmbedLayerNormalization", [IDS, None, WORDS, PLACES, None, GAMMA, BETA], {}, (0, 1)),
        "EmbedLayerNormalization",
        "without a mask",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_reports_why_an_operator_is_kept(name: str) -> None:
    case, kind, reason = LEFT[name]
    model, report = ir.serde.deserialize_model(one_node(case)[0]), FusionReport()
    contrib.expand(model, report)
    assert [node.op_type for node in model.graph] == [case[0]]
    (refusal,) = report.refusals
    assert refusal.kind == kind
    assert reason in refusal.reason


def optimized(label: str, tmp_path: Path, **options: bool) -> bytes:
    """An export by ONNX Runtime's optimizer for transformers."""
    (tmp_path / "model.onnx").write_bytes(exports.content(label))
    chosen = FusionOptions("bert")
    for name, value in options.items():
        setattr(chosen, name, value)
    made = optimizer.optimize_model(
        str(tmp_path / "model.onnx"),
        model_type="bert",
        num_heads=4,
        hidden_size=32,
        opt_level=0,
        optimization_options=chosen,
    )
    return made.model.SerializeToString()


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
    given = exports.given(label)
    expected, got = exports.run(content, given), exports.run(model, given)
    assert exports.difference([each[:4] for each in expected], [each[:4] for each in got]) < exports.TOLERANCE
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
    assert exports.difference([each[:2] for each in untouched], [each[:2] for each in got]) < exports.TOLERANCE
    assert exports.difference([each[2:4] for each in untouched], [each[2:4] for each in got]) > 0.1


FIXED = [label for label, entry in exports.manifest().items() if entry["archive"] == "fixed"]
"""Of fixed shapes: there, dense layers become ``Gemm`` of flattened rows."""


@pytest.mark.parametrize(
    "label", [*OPTIMIZED, *FIXED, "camembert-dynamo23-eager", "electra-sequence-torchscript17-sdpa"]
)
def test_fuses_graphs_serialized_by_onnx_runtime(label: str, tmp_path: Path) -> None:
    assert_fused_whole(serialized(label, tmp_path), label)


@pytest.mark.parametrize("dialect", ["com.microsoft", "onnx", "primitive"])
@pytest.mark.parametrize("label", ["bert-torchscript17-eager", "mpnet-dynamo18-eager", "roberta-torchscript17-sdpa"])
def test_fusing_a_lowered_graph_restores_it(label: str, dialect: str) -> None:
    model = exports.model(label)
    fuse(model)
    before = exports.digest(model)
    lowered = ir.serde.serialize_model(lower.lower(model, dialect)).SerializeToString()
    again = ir.serde.deserialize_model(onnx.load_from_string(lowered))
    report = fuse(again)
    assert report.complete, str(report)
    assert exports.digest(again) == before
