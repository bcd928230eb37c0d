"""Tools for backends that read the fused form themselves (the dialect ``fused``). Imports onnx_ir.

::

    model = fused.read(lowered.path)
    for node in model.graph:
        if fused.is_fused(node, fused.ATTENTION): ...
    fused.lower(model, "primitive", [functions])
    content = fused.serialized(model, lowered.path.parent)

The operators and their inputs are those of ``core/isorun/graph/ops/dialects/primitive.onnxtxt``.
"""

from isorun.graph.analysis.tokens import constant, source
from isorun.graph.io.files import read, serialized
from isorun.graph.ops.functions import ATTENTION, CORE, DOMAIN, EMBEDDING, PACKED, TABLES, is_fused
from isorun.graph.ops.lower import lower

__all__ = [
    "ATTENTION",
    "CORE",
    "DOMAIN",
    "EMBEDDING",
    "PACKED",
    "TABLES",
    "constant",
    "is_fused",
    "lower",
    "read",
    "serialized",
    "source",
]
