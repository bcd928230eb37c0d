"""The encoders after BERT: their exports are fused whole, and agree with the untouched models."""

import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

import exports
from isorun.graph.builders.architectures import ARCHITECTURES
from isorun.graph.ops import functions
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal
from isorun.graph.transforms.precision import half, int8

LABELS = sorted(exports.modern())
FAMILIES = sorted({entry["architecture"] for entry in exports.modern().values()})
PARTS = frozenset(
    (
        *("Softmax", "Attention", "Erf", "Gelu", "RMSNormalization", "RotaryEmbedding"),
        *("ReduceMean", "IsNaN", "GatherElements"),
    )
)
"""Standard operators that are left only where a part of an encoder is not fused."""
HALF_TOLERANCE = 0.03
"""The greatest difference of fp16 from fp32, of 1 + |x|. MobileBERT's hidden states are in the hundreds."""
CONVERTED = (
    *("clip-dynamo18-eager", "deberta-v2-dynamo18-eager", "embeddinggemma-dynamo18-eager", "t5-torchscript17-sdpa"),
    *("eurobert-torchscript17-sdpa", "modernbert-dynamo18-sdpa", "modernbert-positions-torchscript17-eager"),
)
"""Exports with rotations, windows, a causal mask, norms of heads and biases in other places."""
OTHERS = {"xlm-r-xl": {"GatherElements"}, "convbert": {"Softmax"}}
"""The same that other things have too: RoBERTa's positions, the kernels of convolutions."""


def unfused(label: str, model: ir.Model) -> list[str]:
    """What keeps a fused graph from being fused whole: layers without attention, and operators that are left."""
    entry, kinds = exports.entry(label), Counter((node.domain, node.op_type) for node in model.graph)
    missing = entry["layers"] - sum(kinds[functions.DOMAIN, kind] for kind in functions.ATTENTIONS)
    parts = PARTS - OTHERS.get(entry["architecture"], set())
    left = [f"{count} {kind}" for (domain, kind), count in kinds.items() if not domain and kind in parts]
    return [f"{missing} layers", *left] if missing else left


def first_of(family: str) -> str:
    return next(label for label in LABELS if exports.entry(label)["architecture"] == family and "fixed" not in label)


def rows() -> dict[str, list[str]]:
    """The table of models in the documentation: its columns by family, in letters alone."""
    text = (Path(__file__).parents[3] / "docs/models.md").read_text(encoding="utf-8").partition("## Heads")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {
        "".join(filter(str.isalnum, name.split("(")[0].lower())): cells
        for names, *cells in table[1:]
        for name in names.split(",")
    }


def check(label: str, tmp_path: Path, targets: list[tuple[str, str]]) -> tuple[bool, bool]:
    """An export is fused whole, and agrees with the untouched model, with padding and without.

    Returns:
        Whether its padding can be removed, and whether it can be quantized.
    """
    model, (content, result) = exports.fused(label), exports.fusion(label)
    assert result.complete, str(result)
    assert not unfused(label, model)
    feeds, expected = exports.given(label), exports.answers(label)
    assert exports.agree(label, exports.run(content, feeds))
    packed = not padding_removal.examine(model).refusal
    reals = [None, feeds["attention_mask"] != 0] if packed else [None]
    for real, (backend, dialect) in itertools.product(reals, targets):
        fused = exports.fused(label)
        if real is not None:
            padding_removal.remove(fused)
        outputs = exports.run_lowered(backend, dialect, fused, feeds, tmp_path / "model.onnx")
        for wanted, output in zip(expected, outputs, strict=True):
            if real is not None and wanted.shape[:2] == real.shape:
                wanted = np.where(real.reshape(*real.shape, *(1,) * (wanted.ndim - 2)), wanted, 0)
            error = float((np.abs(wanted - output) / (1 + np.abs(wanted))).max())
            assert error < exports.MODERN_TOLERANCE, (backend, dialect, "packed" if real is not None else "padded")
    return packed, any(int8.layers(model))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("family", FAMILIES)
def test_fuses_a_family(family: str, tmp_path: Path) -> None:
    """As the documentation says."""
    packed, quantized = check(first_of(family), tmp_path, [("ort-cpu", "com.microsoft.cpu")])
    name = {"xlm-r-xl": "xlmrobertaxl"}.get(family, re.sub("-(values|positions)$", "", family).replace("-", ""))
    assert rows()[name][:3] == ["yes", "yes" if packed else "no", "yes" if quantized else "no"]


def test_the_documentation_lists_every_checkpoint() -> None:
    listed = {name for _, _, _, checkpoint, _ in rows().values() for name in re.findall("`([^`]+)`", checkpoint)}
    assert {*ARCHITECTURES} == listed - {"position_embedding_type", "alibi"}


@pytest.mark.long
@pytest.mark.parametrize("label", LABELS)
def test_every_backend_agrees_with_every_export(label: str, tmp_path: Path) -> None:
    """All five kinds of mask, in every dialect."""
    check(label, tmp_path, [target for target in exports.targets() if target[0] != "reference"])


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_fp16(family: str, tmp_path: Path) -> None:
    """Computed in fp16 by ONNX's reference."""
    label = first_of(family)
    model = exports.fused(label)
    half.convert(model)
    got = exports.run_lowered(
        "reference", "primitive", model, exports.given(label), tmp_path / "model.onnx", precision="fp16"
    )
    for wanted, output in zip(exports.answers(label), got, strict=True):
        assert float((np.abs(wanted - output) / (1 + np.abs(wanted))).max()) < HALF_TOLERANCE


@pytest.mark.sampled(5)
@pytest.mark.parametrize("label", CONVERTED)
@pytest.mark.parametrize("packs", [False, True], ids=["padded", "packed"])
def test_fuses_files_in_fp16(label: str, packs: bool, tmp_path: Path) -> None:
    """Converted after the export, as published ones are. Their fully masked rows differ between runtimes."""
    half_model = ir.serde.deserialize_model(convert_float_to_float16(exports.proto(label), keep_io_types=True))
    assert fuse(half_model).complete
    assert not unfused(label, half_model)
    if packs and (reason := padding_removal.examine(half_model).refusal):
        pytest.skip(reason)
    if packs:
        padding_removal.remove(half_model)
    feeds = exports.given(label)
    got = exports.run_lowered("ort-cpu", "com.microsoft.cpu", half_model, feeds, tmp_path / "model.onnx")
    expected, real = exports.answers(label)[0], feeds["attention_mask"] != 0
    assert float((np.abs(expected - got[0]) / (1 + np.abs(expected)))[real].max()) < HALF_TOLERANCE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", ["deberta-dynamo18-eager", "deberta-v2-dynamo18-eager"])
@pytest.mark.parametrize("length", [1, 19, 21, 22, 40])
def test_disentangled_attention_in_rows_shorter_and_longer_than_its_table(label: str, length: int) -> None:
    """The table is for distances up to 20 to either side."""
    fused = exports.fused(label)
    assert exports.fusion(label)[1].complete
    feeds = exports.given(label, length=length)
    expected, outputs = exports.run(exports.proto(label), feeds), exports.run(fused, feeds)
    assert exports.difference(expected, outputs) < exports.MODERN_TOLERANCE
