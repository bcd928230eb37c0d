"""Activations by the names in ``config.json``: the fused operator where there is one, ONNX operators otherwise."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.builders.builder import Builder
from isorun.graph.ops import functions

_KINDS = {
    **dict.fromkeys(("gelu", "gelu_python"), "Gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"), "GeluTanh"),
    **dict.fromkeys(("silu", "swish"), "Silu"),
    **{"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "linear": "Identity"},
}

NAMES = tuple(_KINDS)
"""Hugging Face's names of the activations."""


def activated(
    builder: Builder, activation: str, name: str, product: ir.Value, width: int, bias: ir.Value | None = None
) -> ir.Value:
    """``f(product + bias)``.

    Args:
        builder: of the graph.
        activation: one of :data:`NAMES`.
        name: of the node.
        product: (..., width).
        width: of the product.
        bias: (width,); ``None`` if there is none.
    """
    kind = _KINDS[activation]
    if kind.startswith("Gelu"):
        if bias is None:
            bias = builder.constant(f"zeros.{width}", np.zeros(width, np.float32))
        return builder.fused(f"Bias{kind}", name, [product, bias])
    if bias is not None:
        product = builder.node("Add", f"{name}.biased", [product, bias])
    if kind == "Silu":
        return builder.node("Mul", name, [product, builder.node("Sigmoid", f"{name}.sigmoid", [product])])
    return builder.node(kind, name, [product])


def gated(builder: Builder, activation: str, name: str, gate: ir.Value, up: ir.Value, width: int) -> ir.Value:
    """``f(gate) * up``, of two values (..., width)."""
    kind = f"Gated{_KINDS[activation]}"
    if kind in functions.GATED:
        return builder.fused(kind, name, [gate, up])
    return builder.node("Mul", name, [activated(builder, activation, f"{name}.gate", gate, width), up])
