"""The fused operators, as ONNX functions: what each means in each dialect.

A dialect is one file in ``dialects/``, in ONNX's own text form. It holds a function for each fused operator,
all with the same names, inputs, outputs and attributes; only the bodies differ. To add a dialect is to add a
file; to add a fused operator is to add a function to each file. ``dialects/half/`` holds, by dialect, the functions
that differ in a model whose weights are fp16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx.parser
import onnx_ir as ir

from isorun.graph.ops import opset as _opset


@dataclass(frozen=True)
class Tables:
    """The inputs of an embedding that are tables.

    Attributes:
        ids: for each input that holds ids, its place and the place of the table that it indexes.
        at: the place of the positions.
        positions: the place of the table of positions.
    """

    ids: tuple[tuple[int, int], ...]
    at: int
    positions: int


DOMAIN = "isorun.fused"
DOMAIN_VERSION = 1
ATTENTIONS = ("SelfAttention", "GuardedSelfAttention", "BiasedSelfAttention")
"""The attentions: hidden (B, S, H), key mask (B, S), weight and bias of Q, K and V come first in each."""
SINGLE_QUERY = {name: name.replace("SelfAttention", "SingleQueryAttention") for name in ATTENTIONS}
"""What each of them is where one position of each row has a query: query (B, 1, H), key and value (B, S, H), key mask
(B, S) come first."""
LOWEST = -3.3895313892515355e38
"""What a masked key's score is lowered by: the most negative number that bfloat16 and float32 both hold. Functions
have it as ``mask_filter_value``'s default; graphs say it all the same, since not every reader knows defaults."""
EMBEDDINGS = {
    "EmbedLayerNormalization": Tables(ids=((0, 3), (1, 5)), at=2, positions=4),
    "EmbedLayerNormalizationWithoutTypes": Tables(ids=((0, 2),), at=1, positions=3),
}
"""The embeddings, and which of their inputs are tables."""
BODIES = "primitive"
"""The dialect whose functions the fused form itself carries, for readers that do not know the domain."""

_FOLDER = Path(__file__).parent / "dialects"
_SHARED = Path(__file__).parent / "padding.onnxtxt"  # functions that are the same in every dialect


@cache
def dialects() -> tuple[str, ...]:
    """The dialects that the fused form can be lowered to."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.onnxtxt")))


def functions(dialect: str, *, half: bool = False) -> dict[str, ir.Function]:
    """The dialect's functions by operator name, made anew for the caller to put in a model.

    Args:
        dialect: one of :func:`dialects`.
        half: whether the model has fp16 weights.
    """
    found = list(onnx.parser.parse_model(_text(dialect)).functions)
    if half and dialect in _in_half():
        found += onnx.parser.parse_model(_text(f"half/{dialect}")).functions
    for shared in onnx.parser.parse_model(_SHARED.read_text()).functions:
        shared.opset_import[0].version = opset(dialect)
        found.append(shared)
    return {proto.name: ir.serde.deserialize_function(proto) for proto in found}


@cache
def opset(dialect: str) -> int:
    """The version of ONNX's own operators that the dialect is written in."""
    imports = onnx.parser.parse_model(_text(dialect)).opset_import
    return int(next(entry.version for entry in imports if entry.domain == ""))


def carry(model: ir.Model) -> None:
    """Put the bodies of the fused operators that a model calls in it, in the place of any that it has.

    They are in the model's opset: runtimes take a function's operators for the model's.
    """
    for identifier in [each for each in model.functions if each[0] == DOMAIN]:
        del model.functions[identifier]
    bodies = functions(BODIES, half=is_half(model))

    def put(kind: str) -> None:
        body = bodies[kind]
        if body.identifier() not in model.functions:
            for node in body:
                if is_fused(node):
                    put(node.op_type)  # first: ONNX's evaluator reads functions in their order
            _opset.move(body, model.graph.opset_imports[""])
            model.functions[body.identifier()] = body

    for node in model.graph:
        if is_fused(node):
            put(node.op_type)
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION


def is_half(model: ir.Model) -> bool:
    """Whether any fused operator of a model has fp16 weights."""
    weights = (value for node in model.graph if is_fused(node) for value in node.inputs)
    return any(value is not None and value.dtype == ir.DataType.FLOAT16 for value in weights)


def is_fused(node: ir.Node) -> bool:
    """Whether a node calls one of the fused operators."""
    return node.domain == DOMAIN


@cache
def _in_half() -> frozenset[str]:
    """The dialects of which some functions differ in a model with fp16 weights."""
    return frozenset(path.stem for path in (_FOLDER / "half").glob("*.onnxtxt"))


@cache
def _text(dialect: str) -> str:
    return (_FOLDER / f"{dialect}.onnxtxt").read_text()
