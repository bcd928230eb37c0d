"""Models in fp16, whole or in part: fused like those in fp32, their types as they were, and no worse than untouched."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.transformers.float16 import convert_float_to_float16

import exports
from isorun.graph.canonicalize import constants
from isorun.graph.ops import functions, lower
from isorun.graph.pipeline import fuse

LAYERS = 3
EXPORTED = ("bert-torchscript14-eager", "bert-torchscript14-sdpa", "mpnet-dynamo23-eager", "roberta-dynamo18-sdpa")
CONVERTED = {
    "all": ("bert-torchscript17-eager", {}),
    "inputs and outputs too": ("roberta-torchscript17-sdpa", {"keep_io_types": False}),
    "normalization left": ("bert-torchscript17-eager", {"op_block_list": ["LayerNormalization"]}),
    "softmax left": ("mpnet-torchscript17-eager", {"op_block_list": ["Softmax"]}),
    "GELU left": ("bert-dynamo23-eager", {"op_block_list": ["Gelu"]}),
    "most left": (
        "bert-torchscript17-sdpa",
        {"op_block_list": ["LayerNormalization", "Softmax", "Erf", "Div", "Tanh"]},
    ),
    "TensorFlow's": ("distilbert-tf2onnx13", {}),
}
MODELS = (*EXPORTED, *CONVERTED)


def label(name: str) -> str:
    """The export in fp32 that has the same weights."""
    return CONVERTED[name][0] if name in CONVERTED else name


@cache
def content(name: str) -> bytes:
    if name not in CONVERTED:
        return exports.archive("half")[name]
    options = {"keep_io_types": True, **CONVERTED[name][1]}
    return convert_float_to_float16(exports.proto(label(name)), **options).SerializeToString()


@cache
def untouched(name: str) -> list[np.ndarray]:
    return exports.run(content(name), exports.given(label(name)))


@cache
def fusion(name: str) -> bytes:
    model = ir.serde.deserialize_model(onnx.load_from_string(content(name)))
    report = fuse(model)
    assert report.complete, str(report)
    counts = (report.fused[kind] for kind in ("SelfAttention", "SkipLayerNormalization", "EmbedLayerNormalization"))
    assert tuple(counts) == (LAYERS, 2 * LAYERS, 1)
    assert report.fused["BiasGelu"] == LAYERS
    return ir.serde.serialize_model(model).SerializeToString()


def fused(name: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.load_from_string(fusion(name)))


def assert_as_good(name: str, outputs: Sequence[np.ndarray], times: int = 2) -> None:
    """As near to the answers in fp32 as the untouched model in fp16 is, or all but."""
    assert [output.dtype for output in outputs] == [output.dtype for output in untouched(name)]
    # fp16 rounds what is left of scores where every key is masked: by how much is a runtime's affair
    rows = slice(0, 4)
    exact = [output[rows] for output in exports.answers(label(name))]
    error = exports.difference(exact, [output[rows].astype(np.float32) for output in untouched(name)])
    assert error < 0.01
    assert exports.difference(exact, [output[rows].astype(np.float32) for output in outputs]) < times * error
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_fuses_16_bit_models_completely(name: str) -> None:
    assert_as_good(name, exports.run(fused(name), exports.given(label(name))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_fused_operator_has_one_floating_type(name: str) -> None:
    """What had been left in fp32 around it takes and gives casts."""
    for node in fused(name).graph:
        if functions.is_fused(node):
            floats = {
                value.dtype
                for value in node.inputs
                if value is not None and value.dtype not in (None, ir.DataType.INT64)
            }
            assert len(floats) == 1, node


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("backend", "dialect"), exports.targets())
@pytest.mark.parametrize("name", ["bert-torchscript14-eager", "mpnet-dynamo23-eager", "normalization left"])
def test_16_bit_models_run_on_every_backend(name: str, backend: str, dialect: str, tmp_path: Path) -> None:
    feeds, path = exports.given(label(name)), tmp_path / "model.onnx"
    precision = "fp16" if backend == "reference" else "fp32"  # the others compute in fp32 on a CPU
    got = exports.run_lowered(backend, dialect, fused(name), feeds, path, precision)
    # Computed in fp16, queries are rounded once more: they are multiplied by the scale before their product.
    assert_as_good(name, got, times=3 if precision == "fp16" else 2)


def test_fully_masked_row_matches_the_original() -> None:
    """By ONNX Runtime, which computes in fp32 on a CPU: what -65,504 leaves of the scores there."""
    name = "bert-torchscript14-eager"
    model = fused(name)
    values = {
        node.attributes["mask_filter_value"].as_float() for node in model.graph if node.op_type == "SelfAttention"
    }
    assert values == {-65504.0}
    got = exports.run(model, exports.given(name))
    assert exports.difference([output[4:] for output in untouched(name)], [output[4:] for output in got]) < 0.01


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dialect", ["onnx", "primitive"])
@pytest.mark.parametrize("name", ["bert-torchscript14-eager", "mpnet-dynamo23-eager", "roberta-dynamo18-sdpa"])
def test_dialects_agree_on_a_fully_masked_row(name: str, dialect: str) -> None:
    """In fp16 throughout, where scores lowered by 65,504 would be told apart no more, or be minus infinity."""
    lowered = ir.serde.serialize_model(lower.lower(fused(name), dialect))
    with np.errstate(all="ignore"):
        got = ReferenceEvaluator(lowered).run(None, dict(exports.given(name)))
    assert exports.difference([output[4:] for output in untouched(name)], [output[4:] for output in got]) < 0.01


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
@pytest.mark.parametrize("name", ["bert-torchscript14-eager", "modernbert-torchscript17-eager"])
def test_fuses_weights_that_are_stored_in_16_bits(name: str, dtype: ir.DataType) -> None:
    """A cast after each: what is computed is as in fp32."""
    model = exports.model(name)
    weights = [value for value in model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT]
    for value in (value for value in weights if value.const_value is not None and value.const_value.size > 1):
        assert value.const_value is not None
        stored = ir.Value(name=f"{value.name}.stored", type=ir.TensorType(dtype), shape=value.shape)
        stored.const_value = ir.tensor(value.const_value.numpy().astype(dtype.numpy()))
        model.graph.register_initializer(stored)
        cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)})
        model.graph.insert_before(model.graph[0], cast)
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
    feeds = exports.given(name)
    expected = exports.run(model, feeds)
    report = fuse(model)
    assert report.complete, str(report)
    assert exports.difference(expected, exports.run(model, feeds)) < exports.MODERN_TOLERANCE


@pytest.mark.parametrize("rows", [100, 600, 3000])
def test_folds_a_cast_of_a_constant_of_any_size(rows: int) -> None:
    """Constants of up to 64 KiB are computed at once, larger ones when they are written."""
    table = ir.Value(name="table", const_value=ir.tensor(np.ones((rows, 32), np.float16)))
    table.type, table.shape = ir.TensorType(ir.DataType.FLOAT16), ir.Shape([rows, 32])
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([32]))
    cast = ir.node("Cast", [table], {"to": int(ir.DataType.FLOAT)})
    total = ir.node("Add", [cast.outputs[0], x])
    graph = ir.Graph([x], total.outputs, nodes=[cast, total], initializers=[table], opset_imports={"": 17}, name="g")
    constants.fold(ir.Model(graph, ir_version=10))
    assert [node.op_type for node in graph] == ["Add"]
    folded = total.inputs[0]
    assert folded is not None
    assert folded.const_value is not None
    assert folded.const_value.numpy().dtype == np.float32
