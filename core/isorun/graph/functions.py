"""The fused operators, as ONNX functions: what each means in each dialect.

A dialect is one file in ``dialects/``, in ONNX's own text form. It holds a function for each fused operator,
all with the same names, inputs, outputs and attributes; only the bodies differ. To add a dialect is to add a
file; to add a fused operator is to add a function to each file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx.parser
import onnx_ir as ir

DOMAIN = "isorun.fused"
DOMAIN_VERSION = 1
BODIES = "primitive"
"""The dialect whose functions the fused form itself carries, for readers that do not know the domain."""

_FOLDER = Path(__file__).parent / "dialects"
_SHARED = Path(__file__).parent / "padding.onnxtxt"  # functions that are the same in every dialect


@cache
def dialects() -> tuple[str, ...]:
    """The dialects that the fused form can be lowered to."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.onnxtxt")))


def functions(dialect: str) -> dict[str, ir.Function]:
    """The dialect's functions by operator name, made anew for the caller to put in a model."""
    found = list(onnx.parser.parse_model(_text(dialect)).functions)
    for shared in onnx.parser.parse_model(_SHARED.read_text()).functions:
        shared.opset_import[0].version = opset(dialect)
        found.append(shared)
    return {proto.name: ir.serde.deserialize_function(proto) for proto in found}


@cache
def opset(dialect: str) -> int:
    """The version of ONNX's own operators that the dialect is written in."""
    imports = onnx.parser.parse_model(_text(dialect)).opset_import
    return int(next(entry.version for entry in imports if entry.domain == ""))


def is_fused(node: ir.Node) -> bool:
    """Whether a node calls one of the fused operators."""
    return node.domain == DOMAIN


@cache
def _text(dialect: str) -> str:
    return (_FOLDER / f"{dialect}.onnxtxt").read_text()
