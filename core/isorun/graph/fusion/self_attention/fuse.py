"""Self-attention: projections of one value, a mask over keys, the heads, and their concatenation.

Candidates are ``Softmax`` and ``Attention`` nodes. Everything between the dense layers before one and the dense layer
after it is fused. That subgraph is evaluated on samples with every kind of mask and compared with

    context = softmax(scale Q K^T + mask + bias) V

for every order of the three projections, so the decomposition and the layout do not matter. Matched:

- Q, K and V as three dense layers (merged into one matrix product), with or without biases; or as fewer layers that
  compute several of them, concatenated, interleaved by head, or interleaved by column
- fewer heads of keys and values than of queries
- queries and keys that are normalized by head, rotated by position, or multiplied by a number (see ``rotation.py``),
  and values that are rotated like them
- key masks in any form (see ``masks.py``), or none; windows; causal masks; a bias beside the mask (relative positions)
- a query without any key that yields the mean over all keys, zeros (PyTorch's guard), or the softmax of scores lowered
  by a finite mask value
- batch and sequence as two dimensions, or merged into one outside it (as in TensorFlow's dense layers)

Rejected: cross-attention; probabilities or projections that other nodes use; masks that are neither key masks, nor
windows, nor causal; causal windows; a soft cap, bounds of values, a factor that changes in long rows, or any other
deviation from the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import and_

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import array, data_inputs, sizes
from isorun.graph.fusion.self_attention import distances, lengths, pair_masks, rotation, rotation_inputs
from isorun.graph.fusion.self_attention.disentangled import Disentangled
from isorun.graph.fusion.self_attention.formula import AttentionProbe, Formula
from isorun.graph.fusion.self_attention.masks import Bias, KeyMask, MaskClassifier
from isorun.graph.fusion.self_attention.pattern import AttentionPattern, find, is_candidate
from isorun.graph.fusion.self_attention.projection import Projection
from isorun.graph.fusion.self_attention.reach import FINITE_MASK, Reach
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.once import Once
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.ops import functions, positions

KIND = functions.ATTENTION
_SCALE_TOLERANCE = 1e-5


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every self-attention of a normalized model, in place."""
    fusion = _Fusion(model)
    for node in list(model.graph):
        if is_candidate(node) and node.graph is not None:
            with report.candidate(KIND, node.name):
                fusion.fuse(node)


class _Fusion:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._probes = Probes(model.graph)
        self._probe = AttentionProbe(self._probes)
        self._classifier = MaskClassifier(self._probes)
        self._once = Once()

    def fuse(self, root: ir.Node) -> None:
        pattern = find(root)
        self._require_rows(pattern)
        pattern = replace(pattern, positions=rotation.given_positions(pattern))
        mask, bias = self._mask_and_bias(pattern)
        try:
            formula = self._probe.formula(pattern, mask, bias)
        except CannotFuse:  # a truth value that chooses scores may be true at keys, or where there are none
            if mask is None or mask.masked is not None or mask.origin is None:
                raise
            mask = replace(mask, inverted=not mask.inverted)
            formula = self._probe.formula(pattern, mask, bias)
        self._rewrite(pattern, formula, mask, bias)

    def _require_rows(self, pattern: AttentionPattern) -> None:
        """Check that values of three dimensions have the batch on the first, and tokens on the second.

        Raises:
            CannotFuse: one of them does not grow.
        """
        shape = pattern.hidden.shape
        if pattern.flat or shape is None:
            return
        batch, length, *_ = shape
        is_fixed = self._probes.batch is None and isinstance(batch, int)
        if is_fixed or (isinstance(length, int) and not self._probes.fixed):
            raise CannotFuse(
                f"the projected value {pattern.hidden.name!r} has shape {shape}: expected (batch, tokens, width)"
            )

    def _mask_and_bias(self, pattern: AttentionPattern) -> tuple[KeyMask | None, ir.Value | None]:
        key_masks: list[KeyMask] = []
        biases: dict[ir.Value, Bias] = {}
        lengths.check_cuts(self._probes, pattern)
        for turn in pattern.turns:
            self._once(("lengths", turn), partial(lengths.check, self._probes, pattern, turn))
        for side in pattern.sides:
            terms = self._classifier.terms(side, pattern.around)
            if not terms:
                self._once(("lengths", side), partial(lengths.check, self._probes, pattern, side))
            for term in terms:
                if isinstance(term, KeyMask):
                    key_masks.append(term)
                else:
                    biases[term.value] = term
        origins = {(term.origin, term.inverted): term.origin for term in key_masks if term.origin is not None}
        for what, values in (("masks", [*origins.values()]), ("biases", [*biases])):
            if len(values) > 1:
                names = ", ".join(sorted(repr(value.name) for value in values))
                raise CannotFuse(f"expected at most one of its {what}, got {len(values)}: {names}")
        bias = next(iter(biases), None)
        if not key_masks:
            return None, bias
        reach = reduce(and_, (term.reach for term in key_masks))
        masked = min((term.masked for term in key_masks if term.masked is not None), default=None)
        if reach.by_pair and (reach != Reach(by_pair=True) or len(key_masks) > 1):
            raise CannotFuse("it has a mask of pairs and another one")
        if reach.window is not None and (reach.causal or reach.paired or bias is not None):
            raise CannotFuse("it has a window and a bias, a causal mask or a mask of queries")
        added = [term for term in key_masks if term.masked is not None]
        if reach.window is not None and len(added) > 1:  # what two terms lower is lower than what one of them does
            raise CannotFuse("it has a window beside its mask: expected one mask, got a sum of two")
        is_half = subgraph.dtype(pattern.layers[0].weight) == ir.DataType.FLOAT16
        differs = replace(reach, by_pair=False) != Reach()
        if differs and masked is not None and masked > (functions.MASKING if is_half else FINITE_MASK):
            raise CannotFuse(f"its mask differs between queries and lowers scores by {masked}")
        origin, inverted = next(iter(origins), (None, False))
        if self._probes.batch is None and origin is not None and origin.shape is not None and origin.shape[0] == 1:
            raise CannotFuse(f"all rows share its mask {origin.name!r}")
        return KeyMask(origin, masked, reach, inverted), bias

    def _rewrite(
        self, pattern: AttentionPattern, formula: Formula, mask: KeyMask | None, bias: ir.Value | None
    ) -> None:
        op, pairs = subgraph.Before(needed(pattern.context.producer())), None
        if mask is not None and mask.reach.by_pair:
            key = "pairs", mask.origin, mask.inverted
            key_mask, pairs = self._once(key, lambda: pair_masks.split(mask, self._probes, op))
        else:
            key_mask = self._key_mask(mask, pattern, op)
        if bias is not None:
            bias = self._relative(pattern, bias, key_mask, op)
        rows = None
        if pattern.flat:
            rows = op("Concat", op("Shape", key_mask), [-1], axis=0)

        def by_row(value: ir.Value) -> ir.Value:
            return value if rows is None else op("Reshape", value, rows)

        size = pattern.width // formula.heads
        is_turned_before = formula.turn.size > 0 and pattern.positions is not None
        is_joint = pattern.is_joint and not formula.turns_values and not is_turned_before
        kind = KIND if is_joint else functions.CORE
        values: dict[str, ir.Value | None] = {"key_mask": key_mask, "bias": bias, "pairs": pairs}
        if is_joint:
            weight, qkv_bias = self._qkv(formula.projections)
            values |= {"hidden": by_row(pattern.hidden), "qkv_weight": weight, "qkv_bias": qkv_bias}
        else:
            outputs = self._projected(pattern, formula.projections, op)
            values |= dict(zip(("query", "key", "value"), map(by_row, outputs), strict=True))
        dtype = subgraph.dtype(pattern.layers[0].weight)
        gammas = [None if norm is None else _typed(op, norm.gamma, dtype) for norm in formula.norms]
        attributes: dict[str, int | float] = {"num_heads": formula.heads, "mask_filter_value": formula.filter_value}
        attributes |= {name: 1 for name in ("guarded", "summed") if getattr(formula, name)}
        if mask is not None:
            attributes |= {} if mask.reach.window is None else {"window": mask.reach.window}
            attributes |= {name: 1 for name in ("causal", "paired") if getattr(mask.reach, name)}
        if pattern.key_width != pattern.width:
            attributes["head_size"] = size
        scale = _exact(formula.scale)
        if scale != size**-0.5:
            attributes["scale"] = scale
        epsilon = next((norm.epsilon for norm in formula.norms if norm is not None), None)
        if epsilon is not None and is_turned_before:
            for name, gamma in zip(("query", "key"), gammas, strict=True):
                values[name] = _computed(op, functions.NORMALIZE_HEADS, values[name], {"gamma": gamma}, epsilon=epsilon)
        elif epsilon is not None:
            values |= dict(zip(("query_gamma", "key_gamma"), gammas, strict=True))
            attributes["norm_epsilon"] = epsilon
        if formula.turn.size:
            turning = rotation_inputs.inputs(self._probe, self._once, pattern, formula, key_mask, op)
            how = {"interleaved": 1} if formula.turn.interleaved else {}
            how |= {"rotated": formula.turn.size} if formula.turn.size != size else {}
            turned = ["query", "key"] if is_turned_before else []
            for name in [*turned, "value"] if formula.turns_values else turned:
                heads = (pattern.width if name == "query" else pattern.key_width) // size
                sizes_of = {key: attributes[key] for key in ("head_size",) if key in attributes}
                values[name] = _computed(
                    op, functions.ROTATE, values[name], turning, num_heads=heads, **sizes_of, **how
                )
            if not is_turned_before:
                values |= turning
                attributes |= how
        if formula.positional is not None:
            values |= self._position_tables(formula.positional, dtype, op)
            at = positions.in_order(op, key_mask)
            if (longest := formula.positional.longest) is not None:  # longer rows fail to look their positions up
                at = op("Gather", op.constant("positions", np.arange(longest)), at, axis=0)
            values["positions"] = at
            attributes["scale"] = scale
        shapes = {2: [-1, pattern.width], 4: [0, 0, formula.heads, size]}
        shape = shapes.get(subgraph.rank(pattern.context) or 0)
        subgraph.put(kind, functions.ordered(kind, values), attributes, pattern.context, shape)

    def _position_tables(
        self, positional: Disentangled, dtype: ir.DataType, op: subgraph.Before
    ) -> dict[str, ir.Value]:
        """What scores have by distance: a table for queries, one for keys, and the row of each distance."""
        tables = {"position_keys": positional.keys, "position_queries": positional.queries}
        inputs = {part: op.constant(part, table.astype(dtype.numpy())) for part, table in tables.items()}
        key, buckets = ("buckets", positional.buckets.tobytes()), positional.buckets.astype(np.int64)
        return {**inputs, "buckets": self._once(key, lambda: op.constant("buckets", buckets))}

    def _relative(self, pattern: AttentionPattern, bias: ir.Value, key_mask: ir.Value, op: subgraph.Before) -> ir.Value:
        """A bias, (1 or B, 1 or N, S, S): in the canonical form of fused graphs if it is a bias by distance."""

        def relative() -> ir.Value:
            dtype = subgraph.dtype(pattern.layers[0].weight)
            canonical = distances.canonical(self._probes, pattern, bias, key_mask, op, dtype)
            return canonical or distances.for_each_pair(self._probes, pattern, bias, key_mask, op)

        return self._once((bias, key_mask), relative)

    def _key_mask(self, mask: KeyMask | None, pattern: AttentionPattern, op: subgraph.Before) -> ir.Value:
        """The mask as (B, S) int64, nonzero at keys; ones if the model has no mask."""
        if mask is None or mask.origin is None:
            return self._once(_rows(pattern), lambda: op("Expand", 1, self._batch_and_length(pattern, op)))
        origin, inverted = mask.origin, mask.inverted
        if origin.dtype == ir.DataType.INT64 and not inverted:
            return origin

        def of_origin() -> ir.Value:
            floating, value = origin.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE), origin
            if (inverted or floating) and value.dtype != ir.DataType.BOOL:
                value = op.cast(value, ir.DataType.BOOL)
            if inverted:
                value = op("Not", value)
                value.type, value.shape = ir.TensorType(ir.DataType.BOOL), origin.shape
            return op.cast(value, ir.DataType.INT64)

        return self._once((origin, inverted), of_origin)

    def _batch_and_length(self, pattern: AttentionPattern, op: subgraph.Before) -> ir.Value:
        if not pattern.flat:
            return op("Shape", pattern.hidden, start=0, end=2)
        behind = data_inputs(pattern.hidden)
        inputs = [value for value in self._graph.inputs if value in behind and value.shape and len(value.shape) == 2]
        shapes = {None if value.shape is None else tuple(value.shape) for value in inputs}
        if len(shapes) != 1:
            raise CannotFuse(f"it has no mask, and (batch, sequence) of its rows is that of {len(shapes)} inputs")
        return op("Shape", inputs[0])

    def _projected(
        self, pattern: AttentionPattern, projections: tuple[Projection, ...], op: subgraph.Before
    ) -> Sequence[ir.Value]:
        """Queries, keys and values, each."""
        layers = [projection.layer for projection in projections]
        if len(set(layers)) == len(layers):
            return [layer.output for layer in layers]
        weight, bias = self._qkv(projections)
        widths = [len(projection.columns) for projection in projections]
        parts = op.several(len(widths), "Split", op.dense(pattern.hidden, weight, bias), widths, axis=-1)
        for value in parts:
            value.shape, value.type = ir.Shape([None] * (2 if pattern.flat else 3)), layers[0].output.type
        return parts

    def _qkv(self, projections: tuple[Projection, ...]) -> tuple[ir.Value, ir.Value | None]:
        """The merged weight (H, columns) and bias (columns). Layers that share weights share these too."""
        weights = [projection.layer.weight for projection in projections]
        biases = [projection.layer.bias for projection in projections]
        rows, columns = sizes(weights[0])[0], sum(len(projection.columns) for projection in projections)
        layout = tuple(projection.columns for projection in projections)
        dtype = subgraph.dtype(weights[0])

        def weight() -> np.ndarray:
            return np.concatenate([part.of(array(part.layer.weight)) for part in projections], axis=1)

        def bias() -> np.ndarray:
            none = np.zeros(max(sizes(weight)[1] for weight in weights), dtype.numpy())
            own = (none if part.layer.bias is None else array(part.layer.bias) for part in projections)
            return np.concatenate([part.of(numbers) for part, numbers in zip(projections, own, strict=True)])

        def joined(label: str, make: Callable[[], np.ndarray], *shape: int) -> ir.Value:
            tensor = subgraph.lazy(make, dtype, shape)
            return subgraph.constant(self._graph, f"{weights[0].name}.qkv.{label}", tensor)

        is_whole = len(set(weights)) == 1 and sum(layout, ()) == tuple(range(sizes(weights[0])[1]))
        merged = weights[0]
        if not is_whole:
            merged = self._once((*weights, layout), lambda: joined("weight", weight, rows, columns))
        if all(part is None for part in biases) or is_whole:
            return merged, biases[0]
        return merged, self._once((*weights, *biases, layout), lambda: joined("bias", bias, columns))


def _typed(op: subgraph.Before, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A constant in another type: exports in fp16 normalize in fp32."""
    return value if value.dtype == dtype else op.constant("gamma", array(value).astype(dtype.numpy()))


def _computed(
    op: subgraph.Before,
    kind: str,
    value: ir.Value | None,
    others: Mapping[str, ir.Value | None],
    **attributes: int | float,
) -> ir.Value:
    """What an operator of the fused form makes of queries, keys or values before their attention."""
    inputs = functions.ordered(kind, {**others, "x": value})
    result = op(kind, *inputs, domain=functions.DOMAIN, **attributes)
    result.shape, result.type = needed(value).shape, needed(value).type
    return result


def _rows(pattern: AttentionPattern) -> object:
    """What attentions over rows of one number and length have in common: layers of images may differ in both."""
    if pattern.flat:
        return "the rows of the graph"
    sizes = () if pattern.hidden.shape is None else tuple(pattern.hidden.shape[:2])
    is_known = sizes and not any(isinstance(size, ir.SymbolicDim) and size.value is None for size in sizes)
    return sizes if is_known else pattern.hidden


def _exact(scale: float) -> float:
    """A measured scale; the root of a whole number's reciprocal if it is close to one."""
    whole = round(scale**-2)
    return float(whole**-0.5) if whole and abs(scale**-2 / whole - 1) < _SCALE_TOLERANCE else scale
