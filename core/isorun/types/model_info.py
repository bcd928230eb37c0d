"""Models: their inputs and outputs, what is known of their meaning, and what a backend gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Feeds = Mapping[str, Any]
"""Input name to array; ONNX sequences and optionals are lists and ``None``."""

INDEX_ERRORS = "isorun.index_errors"
"""The output of a lowered model that counts indices outside their tables, for backends that do not check them."""
INDEX_NOTE = "checked_indices"
"""The note of such a model that says what it counts."""

_NUMPY_TYPES = {
    **{name: np.dtype(name) for name in ("bool", "float16", "complex64", "complex128")},
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model, in the terms of ``onnxruntime.NodeArg``.

    Attributes:
        name: the tensor's name.
        type: ONNX Runtime's name for its type, such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: a number for a fixed dimension, a name for a symbolic one, ``None`` for an unknown one; ``None`` instead
            of a tuple if the rank is unknown or the value is not a tensor.
        overridable: whether the model has a default value, so that a feed may be omitted.
        bounds: the minimum and maximum valid value (of a token id, by the rows of its table; of a fused graph's mask,
            0 and 1); ``None`` if any value is valid.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None
    overridable: bool = False
    bounds: tuple[int, int] | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype of a tensor's elements; ``None`` if NumPy lacks the type, or for other values."""
        return _NUMPY_TYPES.get(self.type.removeprefix("tensor(").removesuffix(")"))

    @property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The shape; ``None`` unless all its sizes are numbers."""
        sizes = tuple(size for size in self.shape or () if isinstance(size, int))
        return None if self.shape is None or len(sizes) < len(self.shape) else sizes


class ModelMetadata(NamedTuple):
    """A model's metadata, with the fields and defaults of ``onnxruntime.ModelMetadata``."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 2**63 - 1
    custom_metadata_map: dict[str, str] = {}  # noqa: RUF012  # never written to


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model.

    Attributes:
        inputs, outputs: in the model's order.
        opset: the version of the standard operators.
        fused: the number of fused operators by name; empty for a model that is not in the fused form.
        limits: symbolic dimensions that must agree between inputs and must not be 0, each with its maximum (the rows of
            a position table) or ``None``.
        metadata: what the model says about itself.
        quantized: whether its activations were already 8-bit.
        mask: the mask input (batch, sequence), 0 at padding; ``None`` if there is none or it is unknown. That of
            multiple choice is (batch, choices, sequence); :meth:`attended` merges its first two dimensions.
        marks_padding: whether this input is 0 at real tokens instead, as ``src_key_padding_mask`` of PyTorch. Read it
            by :meth:`attended`, and write it by :meth:`as_mask`.
        token_outputs: the token-level outputs (batch, sequence, ...); ``None`` if unknown.
        keeps_padding: why padding cannot be removed; empty if it can. In that case, padding to the right of a row with
            at least one real token, and with real tokens at the positions in :attr:`read`, does not change the results
            of that row (:meth:`may_be_padded`).
        read: positions that the graph reads, where masks differ between queries (windows, causal attention): padding
            there may attend to no key, and then attends to all positions of its row. ``None`` for all positions.
        sees_padding: the first node that reads a number of a row which padding added behind it changes, such as the
            share of real tokens; empty if there is none. Such rows are not padded further.
        mixes_rows: the first node through which a row's results depend on the other rows of its batch, as in
            dynamically quantized models; empty if rows are independent.
        without_rows: the outputs that do not have a row for each row of the batch, such as a constant or a shape.
        unconfirmed: the outputs that may have another shape than the declared one, since nothing in the graph tells.
        random: the first node that draws random numbers, as a dropout does that was exported in training mode, so that
            results differ from run to run; empty if none does.
        window: how many tokens to each side the fused layer sees that attends within the smallest window; ``None``
            without windows. Such a layer works on blocks of tokens, whose sums have another order in another batch.
        sums: the first node of those that may sum over the tokens of a row, as a mean in the graph does, other than an
            attention: in an order that depends on the length to which the row is padded; empty if none does, or padding
            cannot be removed.
        unread: the inputs that no node reads.
        masks: the inputs that fused attentions read as masks, in which any value but 0 is a key. Feeds with others than
            0 and 1 run the model as given, so that a fused graph gets only these.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    fused: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int | None] = field(default_factory=dict)
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    quantized: bool = False
    mask: str | None = None
    marks_padding: bool = False
    token_outputs: tuple[str, ...] | None = None
    keeps_padding: str = "the model has not been analysed"
    read: tuple[int, ...] | None = ()
    sees_padding: str = ""
    mixes_rows: str = ""
    without_rows: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    random: str = ""
    window: int | None = None
    sums: str = ""
    unread: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()

    @property
    def output_names(self) -> list[str]:
        """The names of all outputs."""
        return [spec.name for spec in self.outputs]

    @property
    def required(self) -> list[TensorSpec]:
        """The inputs without a default value, which must be fed."""
        return [spec for spec in self.inputs if not spec.overridable]

    def attended(self, feeds: Feeds) -> Any:
        """The mask in feeds: :func:`attended`."""
        return attended(feeds, self.mask, marks_padding=self.marks_padding)

    def may_be_padded(self, attended: np.ndarray) -> np.ndarray:
        """The rows, (rows,), that more padding on the right does not change. A row without a key attends to all its
        positions equally.

        Args:
            attended: (rows, sequence), nonzero at real tokens.
        """
        kept = np.asarray(attended) != 0
        if self.sees_padding:
            return np.zeros(len(kept), np.bool_)
        length = kept.shape[1]
        read = range(length) if self.read is None else [number for number in self.read if number < length]
        rows: np.ndarray = kept.any(axis=1) & kept[:, read].all(axis=1)
        return rows

    def as_mask(self, attended: np.ndarray) -> np.ndarray:
        """The feed of :attr:`mask`, but for its dtype, for an array (batch, sequence) of 1 at real tokens and 0 at
        padding."""
        return 1 - attended if self.marks_padding else attended

    def padding_of(self, name: str) -> int:
        """What an input holds at padding."""
        return int(self.marks_padding and name == self.mask)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelInfo:
        """The inverse of ``dataclasses.asdict``, also after a round trip through JSON."""

        specs = {key: tuple(TensorSpec(**with_tuples(spec)) for spec in fields[key]) for key in ("inputs", "outputs")}
        return cls(**{**with_tuples(fields), **specs, "metadata": ModelMetadata(*fields["metadata"])})


def with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in which sequences are tuples again, of which JSON makes lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def attended(feeds: Feeds, mask: str | None, *, marks_padding: bool) -> Any:
    """The mask in feeds, (rows, sequence), nonzero at real tokens; ``None`` if there is none. One in device memory is
    returned as it is fed.

    Args:
        feeds: those of a run.
        mask, marks_padding: as in :class:`ModelInfo`.
    """
    fed = feeds.get(mask) if mask else None
    if isinstance(fed, np.ndarray) and fed.ndim > 2:
        fed = fed.reshape(-1, fed.shape[-1])
    return fed == 0 if marks_padding and isinstance(fed, np.ndarray) else fed


@dataclass(frozen=True)
class LoweredModel:
    """A model file in one of a backend's dialects, and its description.

    Attributes:
        path: the ONNX file, owned by the cache or the user: do not write to it.
        dialect: one of the backend's dialects; ``onnx`` for a model without fused operators.
        fingerprint: SHA-256 (hexadecimal) of the original model with its weights, and of the requested outputs unless
            all are.
        info: the description of the lowered model.
        cached: whether it was in the cache.
        notes: changes to the graph besides lowering, as plain data for provenance.
    """

    path: Path
    dialect: str
    fingerprint: str
    info: ModelInfo
    cached: bool
    notes: Mapping[str, Any] = field(default_factory=dict)
