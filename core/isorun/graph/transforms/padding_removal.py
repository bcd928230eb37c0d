"""Padding removal: a rewrite of the fused form in which dense layers run over real tokens alone.

In the fused form, values that belong to tokens have the shape (B, S, ...). Here they have the shape (1, T, ...): the T
tokens that are kept, those of all rows side by side. Dense layers, normalization and activations process each token
alike and stay as they are. The attention core and the outputs get the tokens in rows again.

Kept are the positions with a mask other than 0, and:

- every position of a fully masked row, which attends to all its positions alike;
- position 0 and every other position that the graph reads by its number, as a pooler reads the first;
- positions that the graph computes from its inputs and reads, as a causal classifier reads the last token;
- every position of a row in which such a position that is read is padding, if masks differ between queries: in its
  window there may be no key, and then it attends to all positions alike.

What is computed before the first attention in another way than token by token from an embedding of the fused form
(MobileBERT's neighbours, ESM's factor for each row) is computed for all positions, and those that are kept are taken
from it.

So every value that a sequence-level output depends on is kept for any mask, and that output is unchanged. Outputs with
a value for each token are zero where the mask is 0.

A graph that reads hidden states in another way (such as their plain mean) would see that the padding is gone. It is
rejected, with the name of the node. ``padding.onnxtxt`` computes where the tokens are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis import mask_input, row_lengths, tokens
from isorun.graph.analysis.evaluate import data_inputs
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions
from isorun.graph.transforms.packed_reads import PackedReads
from isorun.graph.transforms.packed_values import GROUPS

_SAME_FOR_ALL = ("cos", "sin", "query_gamma", "key_gamma", "position_keys", "position_queries", "buckets")
_BY_QUERY = frozenset(("window", "causal", "paired"))
"""Attributes by which the keys of queries differ."""
_SUMS = ("ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare")
_OF_ROWS = frozenset(("Add", "Div", "Mul", "Sub", "Where"))
"""What combines a token with a number of its row (ESM), and not with other tokens."""
_GUARDS = {"paired": "own_guard", "causal": "causal_guard"}
"""Which queries have any key, by an attribute of the attention; by none of these, those of a row with a key."""


class Examined(NamedTuple):
    """What is known of a model and its padding.

    Attributes:
        refusal: why it cannot be removed; empty if it can.
        zeroed: what :func:`remove` returns.
        read, sums: as in :attr:`isorun.types.ModelInfo.read` and ``sums``.
    """

    refusal: str
    zeroed: tuple[str, ...] = ()
    read: tuple[int, ...] | None = ()
    sums: str = ""


def remove(model: ir.Model) -> tuple[str, ...]:
    """Rewrite a model in the fused form, in place, so that only the attention core works on padding.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.

    Returns:
        The outputs with a value for each token, which are zero where the mask is 0.

    Raises:
        UnsupportedModel: the graph depends on its padding. The model is partly rewritten then: discard it.
    """
    return _Removal(model).run()


def examine(model: ir.Model) -> Examined:
    """What :func:`remove` would do to a model, which stays as it is."""
    try:
        _key_mask(model.graph)  # most models that are refused are refused here, without a copy
        removal = _Removal(model.clone())
        return Examined("", removal.run(), removal.read_tokens(), removal.sums)
    except UnsupportedModel as error:
        return Examined(str(error))


class _Removal(PackedReads):
    """One rewrite."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        super().__init__(model.graph, _key_mask(model.graph))
        self._by_length = row_lengths.find(model.graph)
        self._masked: dict[ir.Value, ir.Value] = {}  # products with the mask, and what was multiplied
        self.sums = ""

    def run(self) -> tuple[str, ...]:
        outputs = [(value, value.name, value.shape, value.type) for value in self.graph.outputs]
        for node in list(self.graph):
            if functions.is_fused(node, *functions.EMBEDDINGS):
                mixing = self._first_not_by_token(node)
                if mixing is None:
                    self._embed(node)
                elif mixing.op_type not in _OF_ROWS and not _is_zero_at_padding(node, mixing):
                    raise UnsupportedModel(
                        f"Padding cannot be removed: {_name(mixing)} ({mixing.op_type}) mixes the embeddings of "
                        "neighbouring tokens, and those of padding are not zero"
                    )
            elif functions.is_fused(node, functions.ATTENTION, functions.CORE):
                self._attend(node)
            elif functions.is_fused(node, functions.SINGLE_QUERY):
                self._attend_once(node)
            elif functions.is_fused(node, functions.ROTATE):
                self._rotate(node)
            elif any(value in self.packed for value in node.inputs):
                self._take(node)
        for value in self.packed:
            if inner := next((use.node for use in value.uses() if use.node.graph is not self.graph), None):
                raise UnsupportedModel(
                    f"Padding cannot be removed: {_name(inner)} ({inner.op_type}), in a subgraph, may read the hidden "
                    "states of padding"
                )
        if (reader := self._by_length) is not None:  # padding that others add to a row would change its results
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(reader)} ({reader.op_type}) computes with the length of the rows"
            )
        by_token = []
        for index, (value, name, shape, kind) in enumerate(outputs):
            if value in self.packed:
                by_token.append(name or "")
                value.name = f"{name}.packed"
                restored = self.once("restored", value)
                restored.name, restored.shape, restored.type = name, shape, kind
                self.graph.outputs[index] = restored
        self.graph.append(
            ir.node(
                "PackedPlaces",
                [self.mask, *([self.joined(self.computed)] if self.computed else [])],
                {
                    "positions": sorted(self.positions),
                    **({} if self.read_tokens() == () else {"whole": 1}),
                    **({"exact": 1} if self._reads_pairs() else {}),
                },
                domain=functions.DOMAIN,
                outputs=list(self.layout.values()),
                name="padding.places",
            )
        )
        try:
            self.graph.sort()
        except ValueError as error:  # a cycle
            raise UnsupportedModel("Padding cannot be removed: the mask is computed from hidden states") from error
        functions.carry(self._model)
        return tuple(by_token)

    def read_tokens(self) -> tuple[int, ...] | None:
        """The positions that must hold real tokens: one that is padding, and read, may see no key, and attends to all
        positions of its row then. ``None`` for all positions."""
        packed, pairs = self._packed_attentions(), self._reads_pairs()
        reasons = {name for node in packed for name in _BY_QUERY.intersection(node.attributes)}
        if not self.reads_positions or not (reasons or pairs):
            return ()
        if reasons == {"causal"} and not pairs:
            return (0,)  # every later position sees it
        return None if self.computed else tuple(sorted(self.positions))

    def _packed_attentions(self) -> list[ir.Node]:
        return [node for node in self.graph if node.op_type == functions.PACKED]

    def _reads_pairs(self) -> bool:
        return any("first_pairs" in functions.inputs(node) for node in self._packed_attentions())

    def _first_not_by_token(self, embedding: ir.Node) -> ir.Node | None:
        """The first node up to the attentions that does not process an embedding token by token; one of those that
        combine a token with its row only if no other follows."""
        ranks, of_row = {embedding.outputs[0]: 3}, None
        pending = [embedding.outputs[0]]
        while pending:
            value = pending.pop()
            for node in value.consumers():
                attends = functions.is_fused(node, *functions.ATTENTIONS)
                others = (operand for operand in node.inputs if operand is not None and operand not in ranks)
                if attends or node.op_type == "Shape" or tokens.positions_read(node, ranks[value]):
                    continue
                if tokens.is_joining(node) and any(operand.const_value is None for operand in others):
                    continue
                rank = tokens.rank_by_token(node, ranks)
                if rank is None and node.op_type not in _OF_ROWS:
                    return node
                if rank is None:
                    of_row, rank = of_row or node, ranks[value]
                pending.extend(output for output in node.outputs if output not in ranks)
                ranks |= dict.fromkeys(node.outputs, rank)
        return of_row

    def _embed(self, node: ir.Node) -> None:
        for index in (*(index for index, _ in functions.TABLES.ids), functions.TABLES.at):
            ids = node.inputs[index] if index < len(node.inputs) else None  # (B, S), or positions that broadcast to it
            if ids is not None:
                node.replace_input_with(index, self.once("ids", ids))
        if (added := functions.inputs(node).get("added")) is not None:
            node.replace_input_with(functions.input_names(node.op_type).index("added"), self.once("gathered", added))
        self.pack(node.outputs[0], 3)

    def _attend(self, node: ir.Node) -> None:
        """The product with Q, K and V over tokens, the attention core over each group of rows."""
        by_name = functions.inputs(node)
        name = _name(node)
        if node.op_type == functions.ATTENTION:
            hidden = self._packed_form(by_name["hidden"], name)
            qkv = self("MatMul", hidden, by_name["qkv_weight"])
            if "qkv_bias" in by_name:
                qkv = self("Add", qkv, by_name["qkv_bias"])
        else:
            parts = (self._packed_form(by_name[part], name) for part in ("query", "key", "value"))
            qkv = self("Concat", *parts, axis=-1)
        attributes = {"mask_filter_value": functions.LOWEST, **{key: a.value for key, a in node.attributes.items()}}
        inputs = {"qkv": qkv} | {key: by_name[key] for key in _SAME_FOR_ALL if key in by_name}
        groups = {f"{group}{what}": self.layout[f"{group}{what}"] for group in GROUPS for what in ("", "_mask")}
        inputs |= groups | {what: self.layout[what] for what in ("begin", "number", "length")}
        if "positions" in by_name:
            inputs |= self._positions(by_name["positions"], name)
        if "bias" in by_name:
            inputs |= {f"{group}_bias": self.once(group, by_name["bias"]) for group in GROUPS}
        if (pairs := by_name.get("pairs")) is not None:
            inputs |= {f"{group}_pairs": self.once(group, pairs) for group in GROUPS}
        by_query = pairs is not None or any(map(attributes.get, _GUARDS))
        windowed = "window" in attributes
        if windowed and any(map(attributes.get, _GUARDS)):
            raise UnsupportedModel(f"Padding cannot be removed: {name} has a window and is causal or paired")
        if by_query:
            inputs["has_key"] = self._has_key(attributes, pairs)
        if windowed or by_query:
            inputs |= {"kept": self.layout["kept"], "key_mask": self.mask}
        guarded = 0 if windowed else attributes.pop("guarded", 0)
        ordered = functions.ordered(functions.PACKED, inputs)
        packed = self(functions.PACKED, *ordered, domain=functions.DOMAIN, **attributes)
        if guarded:  # a query without any key gives zeros
            packed = self("Mul", packed, self("CastLike", self._has_key(attributes, pairs), packed))
        subgraph.replace_node(node, packed)
        packed.shape = None
        self.pack(packed, 3)

    def _has_key(self, attributes: Mapping[str, object], pairs: ir.Value | None) -> ir.Value:
        """Whether the query of a token has any key, (1, T, 1)."""
        if pairs is not None:
            return self.once("pair_guard", pairs)
        return self.once(next((what for by, what in _GUARDS.items() if attributes.get(by)), "guard"), self.mask)

    def _positions(self, value: ir.Value, name: str) -> dict[str, ir.Value]:
        """The positions of each group's tokens. Other positions than those of tokens in their rows are rejected."""
        if any(source is not self.mask for source in data_inputs(value)):
            raise UnsupportedModel(f"Padding cannot be removed: the positions of {name} depend on a model input")
        positions = {f"{group}_positions": self.layout[f"{group}_positions"] for group in GROUPS}
        producer = value.producer()
        if producer is None or producer.op_type != "Gather":
            return positions
        return {what: self.once(what, value) for what in positions}  # the lookup fails in rows that are too long

    def _packed_form(self, value: ir.Value, name: str) -> ir.Value:
        """A value of tokens in packed form; (B, S, W) values, or such that broadcast to it, are gathered."""
        if value in self.packed:
            return value
        if value.shape is None or len(value.shape) not in (2, 3):
            raise UnsupportedModel(
                f"Padding cannot be removed: {name} reads {value.name!r}, which may not have a value for each token"
            )
        gathered = self.once("gathered", value)
        self.pack(gathered, 3)
        return gathered

    def _attend_once(self, node: ir.Node) -> None:
        """The attention of one query for each row: keys and values go back to their rows."""
        for index in (1, 2):
            value = node.inputs[index]
            if value not in self.packed:
                raise UnsupportedModel(
                    f"Padding cannot be removed: the keys or values of {_name(node)} are not computed token by token "
                    "from a fused embedding or an earlier attention"
                )
            rows = self.layout["rows"]  # not zeros at padding: a fully masked row attends to all its positions
            node.replace_input_with(index, self("Gather", self.once("table", value), rows, axis=0))

    def _rotate(self, node: ir.Node) -> None:
        """A rotation by position reads the positions of the tokens that are kept."""
        inputs = functions.inputs(node)
        node.replace_input_with(0, self._packed_form(inputs["x"], _name(node)))
        at = functions.input_names(functions.ROTATE).index("positions")
        node.replace_input_with(at, self.once("ids", inputs["positions"]))
        self.pack(node.outputs[0], 3)

    def _take(self, node: ir.Node) -> None:
        """Keep a node that reads packed values, make it read single tokens, or restore rows for it."""
        if tokens.is_joining(node) and not any(tokens.is_mask(value, self.mask) for value in node.inputs):
            for index, value in enumerate(node.inputs):
                if value is not None and value not in self.packed and _is_of_tokens(value):
                    node.replace_input_with(index, self._packed_form(value, _name(node)))
        rank = tokens.rank_by_token(node, self.packed)
        if rank is not None:
            for value in node.outputs:
                self.pack(value, rank)
            return
        if self.read(node):
            return
        if node.domain == "" and node.op_type == "Mul":
            for index, value in enumerate(node.inputs):
                if tokens.is_mask(value, self.mask) and (multiplied := node.inputs[1 - index]) in self.packed:
                    node.replace_input_with(index, self("CastLike", self._column(self.mask), multiplied))
                    self.pack(node.outputs[0], self.packed[multiplied])
                    self._masked[node.outputs[0]] = multiplied
                    return
        # Rows with zeros for padding are enough if only their shape is read, if something else replaces the zeros (E5's
        # mean), or if they were multiplied by the mask and are summed up: a mean or a maximum depends on the number of
        # the zeros, but that of numbers from 0 on (SPLADE).
        read = [value for value in node.inputs if value is not None and value in self.packed]
        is_maximum = node.op_type == "ReduceMax" and all(_is_not_negative(self._masked.get(value)) for value in read)
        reduces = (node.op_type in _SUMS or is_maximum) and self._masked.keys() >= {*read}
        restores = node.op_type == "Shape" or reduces or tokens.replaces_padding(node, self.mask, self.packed)
        if node.domain != "" or not restores:
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(node)} ({node.op_type}) may read the hidden states of padding"
            )
        if node.op_type != "Shape" and not is_maximum:
            self.sums = self.sums or _name(node)
        for index, value in enumerate(node.inputs):
            if value is not None and value in self.packed:
                node.replace_input_with(index, self.once("restored", value))


def _is_zero_at_padding(embedding: ir.Node, reader: ir.Node) -> bool:
    """Whether what a node reads of an embedding is zero at padding, whose id is 0: as beyond the end of a row."""
    inputs = functions.inputs(embedding)
    table = tokens.constant(inputs["word"])
    is_plain = embedding.op_type != functions.EMBEDDING and inputs.keys() == {"input_ids", "word"}
    return is_plain and embedding.outputs[0] in reader.inputs and table is not None and not table.numpy()[0].any()


def _is_not_negative(value: ir.Value | None) -> bool:
    """Whether a value is known to be 0 or more, as ``Relu(x)`` and ``log(1 + Relu(x))`` are."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type == "Log":
        added = node.inputs[0].producer() if node.inputs[0] is not None else None
        terms = [] if added is None or added.op_type != "Add" else [*added.inputs]
        numbers = [tensor.numpy() for term in terms if (tensor := tokens.constant(term)) is not None]
        return len(numbers) == 1 and numbers[0].min() >= 1 and any(map(_is_not_negative, terms))
    return node.op_type == "Relu"


def _is_of_tokens(value: ir.Value) -> bool:
    """Whether a value may be (B, S, W), or broadcast to it."""
    floating = value.dtype is not None and value.dtype.is_floating_point()
    return floating and value.const_value is None and value.shape is not None and len(value.shape) in (2, 3)


def _key_mask(graph: ir.Graph) -> ir.Value:
    """The mask of all the attention layers."""
    masks = mask_input.key_masks(graph)
    if not masks:
        raise UnsupportedModel("Padding cannot be removed: the model has no SelfAttention of the fused form")
    mask = masks.pop()
    if masks or mask is None:
        raise UnsupportedModel("Padding cannot be removed: not all layers have the same key mask")
    for node in graph:
        lowered = node.attributes.get_float("mask_filter_value", functions.LOWEST)
        if functions.is_fused(node, *functions.ATTENTIONS) and lowered > functions.MASKING:
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(node)} lowers the scores of padding by {-lowered:g} only, so that "
                "it may still be attended to"
            )
    if not data_inputs(mask):
        raise UnsupportedModel("Padding cannot be removed: no input of the model says which tokens are padding")
    if (counting := mask_input.counting(mask)) is not None:  # right for padding on the right alone
        raise UnsupportedModel(
            f"Padding cannot be removed: the mask is a count of tokens ({_name(counting)}, {counting.op_type}): a row "
            "with padding on the left would lose real tokens. If another tool fused the model, use the one from before"
        )
    return mask


def _name(node: ir.Node) -> str:
    return node.name or node.outputs[0].name or node.op_type
