"""The fused operators: what each is called, and its function in each dialect.

``dialects/`` has a text for each dialect, which holds what it does in its own way; everything else is inherited from
``primitive.onnxtxt``. ``dialects/half/`` has, by dialect, what differs in a model whose weights are fp16. See
:mod:`isorun.graph.ops.compose` for how the function of a node is composed from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.ops import compose
from isorun.graph.ops import opset as _opset


@dataclass(frozen=True)
class Tables:
    """The inputs of an embedding that are tables.

    Attributes:
        ids: for each input that holds ids, its index and the index of the table that it indexes.
        at: the index of the positions.
        positions: the index of the table of positions.
    """

    ids: tuple[tuple[int, int], ...]
    at: int
    positions: int


DOMAIN = compose.DOMAIN
DOMAIN_VERSION = 1
EMBEDDING = "EmbedLayerNormalization"
EMBEDDINGS = (EMBEDDING, "Embedding")
"""The embeddings, with and without a normalization."""
RMS_NORM = "RMSNormalization"
GATED = ("GatedGelu", "GatedGeluTanh", "GatedSilu")
ATTENTION = "SelfAttention"
"""Hidden (B, S, H), key mask (B, S), weight and bias of Q, K and V come first."""
CORE = "AttentionCore"
"""An attention without its product: query, key and value (B, S, H), key mask (B, S) come first."""
SINGLE_QUERY = "SingleQueryAttention"
"""The same for one query in each row: query (B, 1, H), key and value (B, S, H), key mask (B, S) come first."""
ATTENTIONS = (ATTENTION, CORE, SINGLE_QUERY)
ROTATE = "Rotate"
"""A rotation by position outside an attention: (B, S, H), cosines, sines and positions come first."""
NORMALIZE_HEADS = "NormalizeHeads"
"""An RMS normalization of each head outside an attention: (B, S, H) and the weight of a head's dimensions."""
PACKED = "PackedAttention"
"""An attention over a batch without padding, its product done: Q, K and V side by side (1, T, 3 H) come first."""
LOWEST = -3.3895313892515355e38
"""What is added to a masked key's score: the most negative number that bfloat16 and float32 both hold. Functions have
it as ``mask_filter_value``'s default; graphs state it all the same, since not every reader knows defaults."""
MASKING = -5e3
"""What lowers scores by less, or is put in their place, may leave masked keys a share of the attention."""
TABLES = Tables(ids=((0, 3), (1, 5)), at=2, positions=4)
"""Which inputs of the embedding are tables. The second ids and their table, of token types, are optional."""
BODIES = "primitive"
"""The dialect whose functions the fused form itself carries, for readers that do not know the domain."""

FUSED = "fused"
"""The fused form itself, in the place of a dialect: for backends that lower it to a variant of their own."""

_FOLDER = Path(__file__).parent / "dialects"
_BASES = {"com.microsoft.cpu": "com.microsoft"}  # what differs in fp32 alone, from which dialect
_FEATURES = ("../pairs", "../distances", "../features")  # what answers for a feature alone, in every dialect
_PACKING = "../padding"  # where the tokens of a packed batch are: the same in every dialect
_OVERLOADS = 10  # the first version of ONNX's format in which functions have overloads


@cache
def input_names(operator: str) -> tuple[str, ...]:
    """The names of a fused operator's inputs, in order."""
    return tuple(compose.parse(_text(BODIES))[operator].input)


def inputs(node: ir.Node) -> dict[str, ir.Value]:
    """The inputs that a node of the fused form has, by name."""
    names = input_names(node.op_type)
    return {name: value for name, value in zip(names, node.inputs, strict=False) if value is not None}


def ordered(operator: str, values_by_name: Mapping[str, ir.Value | None]) -> list[ir.Value | None]:
    """Inputs by name in a fused operator's order, without absent ones at the end."""
    values = [values_by_name.get(name) for name in input_names(operator)]
    while values and values[-1] is None:
        values.pop()
    return values


def widths(node: ir.Node, columns: int) -> tuple[int, int, int]:
    """The columns of queries, keys and values in the weight of a self-attention, or in its packed product.

    Args:
        node: the attention.
        columns: of all three.
    """
    size = node.attributes.get_int("head_size", 0)
    query = size * node.attributes["num_heads"].as_int() if size else columns // 3
    return query, (columns - query) // 2, (columns - query) // 2


@cache
def dialects() -> tuple[str, ...]:
    """The dialects that the fused form can be lowered to."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.onnxtxt")))


def opset(dialect: str) -> int:
    """The version of ONNX's own operators that the dialect is written in."""
    return compose.opset(_text(dialect))


def chain(dialect: str, *, half: bool) -> list[str]:
    """The texts whose functions a dialect has, the first that has a function wins.

    Args:
        dialect: one of :func:`dialects`.
        half: for a model with weights in 16 bits.
    """

    def with_half(base: str) -> list[str]:
        return [f"half/{base}", base] if half else [base]

    own = [] if half or dialect not in _BASES else [dialect]
    base = _BASES.get(dialect, dialect)
    names = [*own, *(with_half(base) if base != BODIES else []), *_FEATURES, *with_half(BODIES), _PACKING]
    return [text for name in names if (text := _text(name))]


def put(model: ir.Model, dialect: str, overrides: Sequence[str] = ()) -> None:
    """Compose the functions that a model calls and put them in it, in the place of any that it has.

    They are in the model's opset: runtimes take a function's operators for the model's.

    Args:
        model: a model in the fused form.
        dialect: one of :func:`dialects`.
        overrides: texts that precede the dialect's own: a variant of it.

    Raises:
        UnsupportedModel: the dialect has no function for an operator of the model.
    """
    composer = compose.Composer([*overrides, *chain(dialect, half=is_half(model))])
    for node in model.graph:
        if is_fused(node):
            composer.call(node)
    if composer.missing:
        names = ", ".join(f"{DOMAIN}.{name}" for name in sorted(composer.missing))
        raise UnsupportedModel(f"The dialect {dialect!r} has no {names}", sorted(composer.missing))
    for identifier in [key for key in model.functions if key[0] == DOMAIN]:
        del model.functions[identifier]
    for identifier, proto in composer.functions.items():
        if proto.node:
            function = ir.serde.deserialize_function(proto)
            _opset.move(function, model.graph.opset_imports[""])
            model.functions[identifier] = function
    if any(overload for _, _, overload in model.functions):
        model.ir_version = max(model.ir_version, _OVERLOADS)
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION


def carry(model: ir.Model) -> None:
    """Put the bodies of the fused operators that a model calls in it, for readers that do not know the domain."""
    put(model, BODIES)


def is_half(model: ir.Model) -> bool:
    """Whether any fused operator of a model has fp16 or bf16 weights."""
    weights = (value for node in model.graph if is_fused(node) for value in node.inputs)
    return any(value is not None and value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) for value in weights)


def is_fused(node: ir.Node, *kinds: str) -> bool:
    """Whether a node calls one of the fused operators, or one of these."""
    return node.domain == DOMAIN and (not kinds or node.op_type in kinds)


@cache
def _text(name: str) -> str:
    """A text by its path below ``dialects/``, without suffix; empty where there is none."""
    path = _FOLDER / f"{name}.onnxtxt"
    return path.read_text(encoding="utf-8") if path.exists() else ""
