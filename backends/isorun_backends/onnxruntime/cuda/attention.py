"""The forms in which a mask reaches ONNX Runtime's attention kernels for CUDA, and which one a batch may take.

``com.microsoft.Attention`` takes a mask in several forms, and which kernel it takes follows from the form (seen in ONNX
Runtime 1.31.1's own choice, over stand-ins for CUDA's libraries; none ran on a GPU yet):

- ``lengths``, (B) int32: cuDNN's kernel, or where that is not preferred TensorRT's fused ones. It means "the first n
  keys", so it is right for batches in which every row is padded on the right, or not at all, and has a key.
- ``bias``, added to the scores, (B, 1, S, S): cuDNN's kernel as well, or CUTLASS's, where S is a multiple of 8. In fp16
  no number lowers every score of a row alike, so rows need at least one key.
- ``plain``, (B, S) int32 of 0 and 1: plain products and a softmax, in memory. Right for every mask.

A graph whose padding is removed has ``packed`` beside ``plain``: :mod:`isorun_backends.onnxruntime.cuda.packing`.

All are made from one lowered model; a batch's mask says which may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.plugin import Feeds
from isorun_backends.onnxruntime import protos
from isorun_backends.onnxruntime.cuda.packing import CannotPack, Packing, is_packed, pack

if TYPE_CHECKING:
    import onnx

FORMS = ("plain", "bias", "lengths", "packed")
_MULTIPLE = 8  # of keys, for a bias to reach CUTLASS
_LOWEST_FP16 = -65504.0
_MASK, _BIAS = 3, 5  # inputs of com.microsoft.Attention
_POSITIONS = 8  # input of com.microsoft.EmbedLayerNormalization
_NEEDS = {
    "lengths": "every row padded on the right",
    "bias": "a key in every row",
    "packed": "a key at each position that the graph reads by its number, the first above all",
}


@dataclass(frozen=True, slots=True)
class Forms:
    """One model in the forms that it can take.

    Attributes:
        models: by form, serialized; weights stay in the lowered model's folder. ``plain`` is always there.
        mask: the graph's input that becomes the mask; ``None`` where there is the plain form alone.
        why: why there are no others.
        packing: what the form ``packed`` needs of a mask; ``None`` where there is none.
        recordable: the forms that a CUDA graph can hold.
    """

    models: Mapping[str, bytes]
    mask: str | None
    why: str = ""
    packing: Packing | None = None
    recordable: frozenset[str] = frozenset(FORMS)


class Masks(NamedTuple):
    """What decides the form of a mask.

    Attributes:
        name: the input that is the mask; ``None`` where the model has one form alone.
        wanted: ``auto``, or the form that the caller asked for.
        packing: what the form ``packed`` needs of a mask; ``None`` where there is none.
        recordable: the forms that a CUDA graph can hold.
    """

    name: str | None
    wanted: str
    packing: Packing | None = None
    recordable: frozenset[str] = frozenset(FORMS)

    def first(self) -> str:
        """The form that most batches take."""
        if self.wanted != "auto" or self.name is None:
            return "plain" if self.wanted == "auto" else self.wanted
        return "packed" if self.packing else "lengths"

    def form(self, feeds: Feeds) -> str:
        """The form that these feeds run in.

        Raises:
            InvalidFeeds: the caller asked for one that is not right for the mask.
        """
        mask = None if self.name is None else feeds[self.name]
        if not isinstance(mask, np.ndarray):
            # On the device, where it is not looked at: what the caller says is right, or what is right for every mask.
            if self.wanted == "packed":
                raise InvalidFeeds(
                    f"options={{'attention': 'packed'}} finds the tokens in {self.name!r} on the host, and it is on "
                    "the device. Feed a NumPy array there"
                )
            return "plain" if self.wanted == "auto" else self.wanted
        if self.wanted == "auto":
            return choose(mask, self.packing)
        if not allows(self.wanted, mask, self.packing):
            raise InvalidFeeds(
                f"options={{'attention': {self.wanted!r}}} is not right for the mask in {self.name!r}: it needs "
                f"{_NEEDS[self.wanted]}. 'auto' takes what each mask allows"
            )
        return self.wanted

    def fed(self, form: str, feeds: Feeds) -> Feeds:
        """What the graph of a form takes: with where the tokens are, if it is packed."""
        if form != "packed":
            return feeds
        assert self.packing is not None
        return {**feeds, **self.packing.places(feeds[self.packing.mask])}


def choose(mask: np.ndarray, packing: Packing | None = None) -> str:
    """The fastest form that is right for a mask (B, S), nonzero at keys."""
    if packing is not None:
        return "packed" if packing.allows(mask) else "plain"
    real = mask != 0
    if mask.size and real[:, 0].all() and not (real[:, 1:] > real[:, :-1]).any():
        return "lengths"
    if mask.size and mask.shape[1] % _MULTIPLE == 0 and real.any(axis=1).all():
        return "bias"
    return "plain"


def allows(form: str, mask: np.ndarray, packing: Packing | None = None) -> bool:
    """Whether a form is right for a mask."""
    if form in ("lengths", "packed"):
        return choose(mask, packing) == form
    return form == "plain" or bool((mask != 0).any(axis=1).all())


def forms(path: Path) -> Forms:
    """Make the forms of a lowered model.

    Args:
        path: the ONNX file. It is only read, and not its weights.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    if is_packed(model.graph):
        return _packed(model)
    _leave_positions_to_the_kernel(model.graph)
    plain = model.SerializeToString()
    nodes = [node for node in model.graph.node if protos.is_contrib(node, "Attention")]
    if not nodes:  # a MultiHeadAttention beside them is the last layer's, of one query for each row, in all forms alike
        return Forms({"plain": plain}, None, "its attention is not com.microsoft.Attention")
    masks = {protos.input_of(node, _MASK) for node in nodes}
    if len(masks) > 1 or "" in masks or any(protos.input_of(node, _BIAS) for node in nodes):
        return Forms({"plain": plain}, None, "its layers have masks of their own, or a bias on their scores")
    (mask,) = masks
    source = protos.source(model.graph, mask)
    if source is None:
        return Forms({"plain": plain}, None, f"its mask {mask!r} is not one of its inputs")
    made = {"plain": plain}
    for form, rewrite in (("bias", _to_bias), ("lengths", _to_lengths)):
        variant = onnx.ModelProto()
        variant.CopyFrom(model)
        rewrite(variant.graph, mask)
        made[form] = variant.SerializeToString()
    return Forms(made, source, "its padding is there; padding='remove' takes it out")


def _packed(model: onnx.ModelProto) -> Forms:
    """The forms of a graph whose padding is removed. As it is lowered, the host waits for numbers amid a run."""
    plain = model.SerializeToString()
    try:
        packing = pack(model.graph)
    except CannotPack as why:
        return Forms({"plain": plain}, None, f"its padding is removed, and {why}", recordable=frozenset())
    models = {"plain": plain, "packed": model.SerializeToString()}
    return Forms(models, packing.mask, "its padding is removed", packing, frozenset({"packed"}))


def _to_lengths(graph: onnx.GraphProto, mask: str) -> None:
    """The number of keys of each row: (B, S) -> (B)."""
    from onnx import helper

    made = [
        protos.constant("isorun.lengths.axis", np.array([1], np.int64)),
        helper.make_node("ReduceSum", [mask, "isorun.lengths.axis"], ["isorun.lengths"], "isorun.lengths", keepdims=0),
    ]
    protos.insert(graph, mask, made)
    for node in graph.node:
        if protos.is_contrib(node, "Attention"):
            node.input[_MASK] = "isorun.lengths"


def _to_bias(graph: onnx.GraphProto, mask: str) -> None:
    """What is added to the scores: (B, S) -> (B, 1, S, S). The dimension of queries is spread by adding a column of
    zeros, which needs no shape and so no work on the CPU."""
    from onnx import TensorProto, helper

    types = {initializer.name: initializer.data_type for initializer in graph.initializer}
    by_setting: dict[tuple[int, float], str] = {}
    for node in [node for node in graph.node if protos.is_contrib(node, "Attention")]:
        kind = types.get(node.input[1], TensorProto.FLOAT)
        lowest = next((a.f for a in node.attribute if a.name == "mask_filter_value"), -10000.0)
        if kind == TensorProto.FLOAT16:
            lowest = max(lowest, _LOWEST_FP16)
        if (kind, lowest) not in by_setting:
            name = f"isorun.bias.{len(by_setting)}"
            by_setting[kind, lowest] = name
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
            made = [
                protos.constant(f"{name}.keys", np.array([1, 2], np.int64)),
                protos.constant(f"{name}.queries", np.array([1, 3], np.int64)),
                protos.constant(f"{name}.nothing", np.zeros((), dtype)),
                protos.constant(f"{name}.lowest", np.array(lowest, dtype)),
                helper.make_node("Cast", [mask], [f"{name}.attend"], f"{name}.attend", to=TensorProto.BOOL),
                helper.make_node(
                    "Where", [f"{name}.attend", f"{name}.nothing", f"{name}.lowest"], [f"{name}.row"], f"{name}.row"
                ),
                helper.make_node("Unsqueeze", [f"{name}.row", f"{name}.keys"], [f"{name}.by_key"], f"{name}.by_key"),
                helper.make_node("Mul", [f"{name}.row", f"{name}.nothing"], [f"{name}.zeros"], f"{name}.zeros"),
                helper.make_node(
                    "Unsqueeze", [f"{name}.zeros", f"{name}.queries"], [f"{name}.column"], f"{name}.column"
                ),
                helper.make_node("Add", [f"{name}.by_key", f"{name}.column"], [name], name),
            ]
            protos.insert(graph, mask, made)
        inputs = [*node.input, *[""] * (_BIAS + 1 - len(node.input))]
        inputs[_MASK], inputs[_BIAS] = "", by_setting[kind, lowest]
        del node.input[:]
        node.input.extend(inputs)


def _leave_positions_to_the_kernel(graph: onnx.GraphProto) -> None:
    """Positions that are 0, 1, 2 and so on are what the kernel counts by itself."""
    for node in graph.node:
        if protos.is_contrib(node, "EmbedLayerNormalization") and protos.counts_from_zero(
            graph, protos.input_of(node, _POSITIONS), ("Cast", "Unsqueeze", "Identity")
        ):
            del node.input[_POSITIONS:]
    protos.drop_unused(graph)
