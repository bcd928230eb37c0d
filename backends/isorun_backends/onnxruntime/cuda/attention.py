"""The forms in which a mask reaches ONNX Runtime's attention kernels for CUDA, and which one a batch may take.

``com.microsoft.Attention`` takes a mask in several forms, and which kernel it takes follows from the form (seen in fp16
on an H200 with ONNX Runtime 1.31.1):

- ``lengths``, (B) int32: cuDNN's kernel, or where that is not preferred TensorRT's fused ones. It means "the first n
  keys", so it is right for batches in which every row is padded on the right, or not at all, and has a key.
- ``bias``, added to the scores, (B, 1, S, S): cuDNN's kernel as well, or CUTLASS's, where S is a multiple of 8. In fp16
  no number lowers every score of a row alike, so rows need at least one key.
- ``unmasked``, none: flash attention. Right for batches without padding.
- ``plain``, (B, S) int32 of 0 and 1: plain products and a softmax, in memory. Right for every mask.

cuDNN's kernel is planned anew for every shape, by each thread: about 100 ms, for a run of 1 ms. So it is used for
shapes that become CUDA graphs, which are few and run on one thread.

A graph whose padding is removed has ``packed`` beside ``plain``: :mod:`isorun_backends.onnxruntime.cuda.packing`.

All are lowered from one model in the fused form, to variants of the dialect com.microsoft (``forms/``); a batch's mask
says which may run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isorun.plugin import Feeds, InvalidFeeds
from isorun_backends.onnxruntime.cuda.packing import CannotPack, Packing, is_packed, pack

if TYPE_CHECKING:
    import onnx_ir as ir

FORMS = ("plain", "bias", "lengths", "unmasked", "packed")
PLANNED = ("lengths", "bias")
"""The forms to choose from, the fastest first, with kernels that are planned for a shape."""
UNPLANNED = ("unmasked", "bias")
"""The same without such kernels."""
_MULTIPLE = 8  # of keys, for a bias to reach CUTLASS
_KEY_MASK, _BIAS = 1, 4  # inputs of SelfAttention
_KERNEL_POSITIONS = 8  # input of com.microsoft.EmbedLayerNormalization
_HANDED_ON = ("Cast", "Unsqueeze", "Identity", "Gather", "Reshape", "Expand")  # between a Range and an embedding
_NEEDS = {
    "lengths": "padding on the right of every row",
    "bias": "a real token in every row",
    "unmasked": "no padding",
    "packed": "a real token at each position that the graph reads by its number, such as the first",
}


@dataclass(frozen=True, slots=True)
class Forms:
    """One model in the forms that it can take.

    Attributes:
        models: by form, serialized; weights stay in the model's folder. ``plain`` is always there.
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
        forms: those to choose from, the fastest first.
    """

    name: str | None
    wanted: str
    packing: Packing | None = None
    recordable: frozenset[str] = frozenset(FORMS)
    forms: tuple[str, ...] = PLANNED

    def first(self) -> str:
        """The form that most batches take."""
        if self.wanted != "auto" or self.name is None:
            return "plain" if self.wanted == "auto" else self.wanted
        return "packed" if self.packing else self.forms[0]

    def form(self, feeds: Feeds) -> str:
        """The form that these feeds run in. Raises ``InvalidFeeds`` if the caller asked for one that is not right for
        the mask."""
        mask = None if self.name is None else feeds.get(self.name)
        if mask is None:  # the model has no input for it, or its default is used, which is not known here
            if self.name is not None and self.wanted not in ("auto", "plain"):
                raise InvalidFeeds(
                    f"options={{'attention': {self.wanted!r}}} reads the input {self.name!r}, which is not fed. Pass it"
                )
            return "plain" if self.wanted == "auto" else self.wanted
        if not isinstance(mask, np.ndarray):
            # On the device, where it is not looked at: what the caller says is right, or what is right for every mask.
            if self.wanted == "packed":
                raise InvalidFeeds(
                    f"options={{'attention': 'packed'}} reads {self.name!r} on the host, but it is on the device. "
                    "Pass a NumPy array for that input"
                )
            return "plain" if self.wanted == "auto" else self.wanted
        if self.wanted == "auto":
            return choose(mask, self.packing, self.forms)
        if not allows(self.wanted, mask, self.packing):
            raise InvalidFeeds(
                f"options={{'attention': {self.wanted!r}}} does not support the mask in {self.name!r}: it requires "
                f"{_NEEDS[self.wanted]}. Use 'auto', which selects a form that the mask allows"
            )
        return self.wanted

    def fed(self, form: str, feeds: Feeds) -> Feeds:
        """What the graph of a form takes: with where the tokens are, if it is packed."""
        if form != "packed":
            return feeds
        assert self.packing is not None
        return {**feeds, **self.packing.places(feeds[self.packing.mask])}


def choose(mask: np.ndarray, packing: Packing | None = None, forms: Sequence[str] = PLANNED) -> str:
    """The fastest form that is right for a mask (B, S), nonzero at keys."""
    for form in forms if packing is None else ("packed",):
        fits = form != "bias" or (mask.size > 0 and mask.shape[1] % _MULTIPLE == 0)
        if fits and allows(form, mask, packing):
            return form
    return "plain"


def allows(form: str, mask: np.ndarray, packing: Packing | None = None) -> bool:
    """Whether a form is right for a mask."""
    if form == "packed":
        return packing is not None and packing.allows(mask)
    real = mask != 0
    if form == "lengths":
        return bool(mask.size and real[:, 0].all() and not (real[:, 1:] > real[:, :-1]).any())
    if form == "unmasked":
        return bool(mask.size and real.all())
    return form == "plain" or bool(real.any(axis=1).all())


def forms(path: Path) -> Forms:
    """Lower a model, in the fused form or any other, to each form that it can take. Only its ONNX file is read, and not
    its weights."""
    from isorun.plugin import fused

    model, folder = fused.read(path), path.parent
    nodes = [node for node in model.graph if fused.is_fused(node)]
    if not nodes:
        return Forms({"plain": path.read_bytes()}, None, "it is not in the fused form")
    if is_packed(model):
        embeddings = [node for node in nodes if node.op_type == fused.EMBEDDING]
        in_order = [node for node in embeddings if _counts_from_zero(node.inputs[fused.TABLES.at])]
        return _packed(model, in_order, folder)
    plain = {"plain": _lowered(model, "plain", folder, padded=True)}
    nodes = [node for node in nodes if node.op_type == fused.ATTENTION]
    if not nodes:  # one of a single query beside them is the last layer's, the same in all forms
        return Forms(plain, None, f"it has no {fused.ATTENTION}")
    masks = {node.inputs[_KEY_MASK] for node in nodes}
    if len(masks) > 1 or any(value is not None for node in nodes for value in node.inputs[_BIAS:]):
        return Forms(plain, None, "its layers have masks of their own, or a bias on their scores")
    if any(node.attributes.keys() - {"num_heads", "guarded", "mask_filter_value"} for node in nodes):
        return Forms(plain, None, "its attention has features that the kernels lack")
    (mask,) = masks
    assert mask is not None
    source = fused.source(mask)
    if not source.is_graph_input():
        return Forms(plain, None, f"its mask {source.name!r} is not one of its inputs")
    others = {form: _lowered(model, form, folder, padded=True) for form in ("bias", "lengths", "unmasked")}
    return Forms({**plain, **others}, source.name, "its padding is there; padding='remove' takes it out")


def _packed(model: ir.Model, in_order: Sequence[ir.Node], folder: Path) -> Forms:
    """The forms of a graph whose padding is removed. In the plain one the host waits for numbers amid a run."""
    plain = _lowered(model, "plain", folder)
    try:
        packing = pack(model, in_order=in_order)
    except CannotPack as why:
        return Forms({"plain": plain}, None, f"its padding is removed, and {why}", recordable=frozenset())
    models = {"plain": plain, "packed": _lowered(model, "packed", folder)}
    return Forms(models, packing.mask, "its padding is removed", packing, frozenset({"packed"}))


def _lowered(model: ir.Model, form: str, folder: Path, *, padded: bool = False) -> bytes:
    """A model in one form, serialized: com.microsoft, with what that form has in its place. If it is ``padded``, tokens
    are in rows, so that the kernel of embeddings can count positions itself."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    from isorun.plugin import fused

    text = Path(__file__).parent / "dialects" / f"{form}.onnxtxt"
    lowered = fused.lower(model.clone(), "com.microsoft", [text.read_text(encoding="utf-8")] if text.exists() else [])
    for node in lowered.graph if padded else ():
        if node.op_type == fused.EMBEDDING and _counts_from_zero(node.inputs[_KERNEL_POSITIONS]):
            node.replace_input_with(_KERNEL_POSITIONS, None)
    RemoveUnusedNodesPass()(lowered)
    return fused.serialized(lowered, folder)


def _counts_from_zero(value: ir.Value | None) -> bool:
    """Whether positions are 0, 1, 2 and so on, computed by a Range."""
    from isorun.plugin import fused

    node = None if value is None else value.producer()
    while node is not None and node.op_type in _HANDED_ON:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is None or node.op_type != "Range":
        return False
    start, _, step = (fused.constant(bound) for bound in node.inputs)
    return start is not None and step is not None and (int(start.numpy()), int(step.numpy())) == (0, 1)
