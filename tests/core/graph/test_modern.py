"""The encoders after BERT: exports of the families that are fused whole agree with the untouched model.

``python tests/core/graph/test_modern.py [FAMILY ...]`` reports what is fused of every export.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.ops import functions
from isorun.graph.pipeline import fuse

WHOLE: frozenset[str] = frozenset()
"""The families whose exports are all fused whole."""

LABELS = [label for label, entry in exports.modern().items() if entry["architecture"] in WHOLE]
UNFUSED = frozenset(
    (
        *("Softmax", "Attention", "Erf", "Gelu", "Sigmoid", "LayerNormalization", "RMSNormalization"),
        *("RotaryEmbedding", "ReduceMean", "Sqrt", "IsNaN", "Where", "Sin", "Cos"),
    )
)
"""Operators that only the parts of an encoder have."""


def unfused(label: str, model: ir.Model, layers: int) -> list[str]:
    """What keeps a fused graph from being fused whole: layers without attention, and operators that are left."""
    kinds = Counter(node.op_type for node in model.graph)
    missing = layers - kinds[functions.ATTENTION] - kinds[functions.SINGLE_QUERY]
    left = [f"{count} {kind}" for kind, count in kinds.items() if kind in UNFUSED]
    return [f"{missing} layers", *left] if missing else left


@pytest.mark.parametrize("label", LABELS)
def test_fuses_whole_and_agrees(label: str) -> None:
    model = exports.model(label)
    report = fuse(model)
    assert report.complete, str(report)
    assert not unfused(label, model, exports.entry(label)["layers"])
    assert exports.agree(label, exports.run(model, exports.given(label)))


@pytest.mark.parametrize(("backend", "dialect"), exports.targets())
@pytest.mark.parametrize("family", sorted(WHOLE))
def test_every_backend_agrees(family: str, backend: str, dialect: str, tmp_path: Path) -> None:
    """All five kinds of mask, in every dialect. Exports that fuse to the same graph are run once."""
    answers: dict[str, list[np.ndarray]] = {}
    for label in LABELS:
        if exports.entry(label)["architecture"] != family:
            continue
        model = exports.model(label)
        fuse(model)
        name = f"{exports.digest(model)}-{exports.entry(label).get('rows')}"
        if name not in answers:
            answers[name] = exports.run_lowered(
                backend, dialect, model, exports.given(label), tmp_path / f"{name}.onnx"
            )
        assert exports.agree(label, answers[name]), label


def report(families: list[str]) -> None:
    """Print for each export what is fused, whether its answers are the same, and why the rest is not fused."""
    for label, entry in exports.modern().items():
        if families and entry["architecture"] not in families:
            continue
        model = exports.model(label)
        result = fuse(model)
        left = unfused(label, model, entry["layers"])
        same = exports.agree(label, exports.run(model, exports.given(label)))
        print(f"{label}: {'whole' if result.complete and not left else 'in part'}, {'same' if same else 'DIFFERENT'}")
        for reason in [*left, *dict.fromkeys(f"{refusal.kind}: {refusal.reason}" for refusal in result.refusals)]:
            print(f"    {reason}")


if __name__ == "__main__":
    report(sys.argv[1:])
