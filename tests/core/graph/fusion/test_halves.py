"""Models in fp16, whole or in part: fused like those in fp32, their types as they were, and no worse than untouched."""

from __future__ import annotations

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


def fused(name: str) -> ir.Model:
    model = ir.serde.deserialize_model(onnx.load_from_string(content(name)))
    report = fuse(model)
    assert report.complete, str(report)
    found = (report.fused[kind] for kind in ("SelfAttention", "SkipLayerNormalization", "EmbedLayerNormalization"))
    assert tuple(found) == (LAYERS, 2 * LAYERS, 1)
    assert report.fused["BiasGelu"] == LAYERS
    return model


def assert_as_good(name: str, got: Sequence[np.ndarray]) -> None:
    """As near to the answers in fp32 as the untouched model in fp16 is, or all but."""
    assert [each.dtype for each in got] == [each.dtype for each in untouched(name)]
    rows = slice(
        0, 4
    )  # fp16 rounds what is left of scores where every key is masked: by how much is a runtime's affair
    exact = [each[rows] for each in exports.answers(label(name))]
    error = exports.difference(exact, [each[rows].astype(np.float32) for each in untouched(name)])
    assert error < 0.01
    assert exports.difference(exact, [each[rows].astype(np.float32) for each in got]) < 2 * error
    assert all(np.isfinite(each).all() for each in got)


@pytest.mark.parametrize("name", MODELS)
def test_fuses_16_bit_models_completely(name: str) -> None:
    assert_as_good(name, exports.run(fused(name), exports.given(label(name))))


@pytest.mark.parametrize("name", MODELS)
def test_fused_operator_has_one_floating_type(name: str) -> None:
    """What had been left in fp32 around it takes and gives casts."""
    for node in fused(name).graph:
        if functions.is_fused(node):
            floats = {
                each.dtype for each in node.inputs if each is not None and each.dtype not in (None, ir.DataType.INT64)
            }
            assert len(floats) == 1, node


@pytest.mark.parametrize(("backend", "dialect"), exports.targets())
@pytest.mark.parametrize("name", ["bert-torchscript14-eager", "mpnet-dynamo23-eager", "normalization left"])
def test_16_bit_models_run_on_every_backend(name: str, backend: str, dialect: str, tmp_path: Path) -> None:
    given, path = exports.given(label(name)), tmp_path / "model.onnx"
    precision = "fp16" if backend == "reference" else "fp32"  # the others compute in fp32 on a CPU
    got = exports.run_lowered(backend, dialect, fused(name), given, path, precision)
    assert_as_good(name, got)


def test_fully_masked_row_matches_the_original() -> None:
    """By ONNX Runtime, which computes in fp32 on a CPU: what -65,504 leaves of the scores there."""
    name = "bert-torchscript14-eager"
    model = fused(name)
    values = {
        node.attributes["mask_filter_value"].as_float() for node in model.graph if node.op_type == "SelfAttention"
    }
    assert values == {-65504.0}
    got = exports.run(model, exports.given(name))
    assert exports.difference([each[4:] for each in untouched(name)], [each[4:] for each in got]) < 0.01


@pytest.mark.parametrize("dialect", ["onnx", "primitive"])
@pytest.mark.parametrize("name", ["bert-torchscript14-eager", "mpnet-dynamo23-eager", "roberta-dynamo18-sdpa"])
def test_dialects_agree_on_a_fully_masked_row(name: str, dialect: str) -> None:
    """In fp16 throughout, where scores lowered by 65,504 would be told apart no more, or be minus infinity."""
    lowered = ir.serde.serialize_model(lower.lower(fused(name), dialect))
    with np.errstate(all="ignore"):
        got = ReferenceEvaluator(lowered).run(None, dict(exports.given(name)))
    assert exports.difference([each[4:] for each in untouched(name)], [each[4:] for each in got]) < 0.01
