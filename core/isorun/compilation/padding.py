"""Which graph a session runs: the one that computes padding, the packed one, or the better for each batch.

:mod:`isorun.graph.transforms.padding_removal` defines the packed graph. Gathering real tokens and scattering them back
costs time, so with ``padding="auto"`` every run inspects its mask; batches with enough padding use the packed graph.
Other batches use the unpacked graph, whose token outputs are then set to zero at padding, so that outputs do not depend
on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.plugin.backend import Backend
from isorun.types import CompileConfig, ModelInfo

# The packed graph must save this share of a batch's tokens, and this many more. It computes whole steps of tokens, as
# ``graph/ops/padding.onnxtxt`` rounds them up. Measured with three layers, 768 wide, on two cores (docs/padding.md).
_SHARE, _TOKENS, _STEP = 1 / 12, 4, 16


class Removal(NamedTuple):
    """Whether padding is removed.

    Attributes:
        by_batch: whether each batch decides.
        zeros: whether outputs with a value for each token are zero at padding.
        note: for provenance; ``None`` if there is nothing to say.
    """

    by_batch: bool = False
    zeros: bool = False
    note: Mapping[str, Any] | None = None


KEPT = Removal()


def removal(padding: str, info: ModelInfo, backend: Backend, config: CompileConfig) -> Removal:
    """Whether a model's padding is removed."""
    if padding == "remove":
        return Removal(zeros=True, note={"requested": padding, "removed": "always"})
    if padding == "keep" or (not info.fused and info.mask is None):
        return KEPT
    if kept := _why_kept(info, backend, config):
        return Removal(note={"requested": padding, "removed": f"never: {kept}"})
    return Removal(True, True, {"requested": padding, "removed": "from batches that have enough of it"})


def _why_kept(info: ModelInfo, backend: Backend, config: CompileConfig) -> str:
    """Why padding is never removed; empty if each batch decides."""
    offers = backend.capabilities
    if not info.fused:
        return "the model is not fused"
    if not offers.dynamic_shapes or config.accelerators:
        return "not known to pay on this backend"
    if not offers.data_dependent_shapes:
        return "the backend does not support data-dependent shapes"
    if info.keeps_padding or info.mask is None:
        return info.keeps_padding or "the key mask is not one of the model's inputs"
    if unproven := unproven_output(info):
        return f"the output {unproven!r} may have a value for each token, and is not known to be zero at padding"
    return ""


def unproven_output(info: ModelInfo) -> str:
    """An output that may be token-level but is not recognized: padding in it would depend on the graph that ran."""
    mask = next(spec for spec in info.inputs if spec.name == info.mask)
    length = mask.shape[-1] if mask.shape else None
    for spec in info.outputs:
        if spec.name in (info.token_outputs or ()):
            continue
        if spec.shape is None or len(spec.shape) > 2 or (len(spec.shape) == 2 and spec.shape[1] in (None, length)):
            return spec.name
    return ""


def pays(padding: int, tokens: int) -> bool:
    """Whether a batch is faster in the packed graph.

    Args:
        padding: the number of its tokens that are padding.
        tokens: all of them.
    """
    computed = -(-(tokens - padding) // _STEP) * _STEP
    return tokens - computed > tokens * _SHARE + _TOKENS


def with_zeros(name: str, result: Any, mask: np.ndarray) -> np.ndarray:
    """A token output with zeros at padding: itself, or a copy if it is read-only.

    Args:
        result: (batch, sequence, ...).
        mask: (batch or 1, sequence).

    Raises:
        InvalidFeeds: it is in device memory.
    """
    if not isinstance(result, np.ndarray):
        raise InvalidFeeds(
            f"Output {name!r} is in device memory, where isorun does not set it to zero at padding, as the mask of "
            "these feeds requires. Copy the outputs to the host, or use padding='keep'"
        )
    zeroed: np.ndarray = result if result.flags.writeable else result.copy()
    zeroed[np.broadcast_to(mask == 0, zeroed.shape[:2])] = 0
    return zeroed
