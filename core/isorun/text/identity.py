"""What vectors depend on, and whether those of two embedders may be searched together."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_type_hints

import numpy as np

from isorun.compilation import corpus
from isorun.errors import InvalidArgument, InvalidType
from isorun.quality import Interval, agreement
from isorun.system.cache import sha256
from isorun.text import vector_types

_VERSION = 3
_EXACT = ("fp32", "fp64")
_NUMERIC = ("precision", "backend", "version", "quantizer", "settings")
"""What changes how vectors are computed, not what they mean."""
_BATCHES = "batches"  # in the session's note on rows that depend on one another
_KINDS = ("prose", "questions", "languages")
_REQUIRED = 0.9  # of the nearest neighbours, at the low end of the interval


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIdentity:
    """What the vectors of an embedder depend on.

    Attributes:
        model: SHA-256 of the ONNX model, or of a checkpoint's ``config.json`` and weights.
        tokenizer: a digest of the tokenizer and its settings.
        pooling: the poolings, joined by ``+``; empty if the model pools.
        layers: a digest of the layers before and after pooling; empty if there are none.
        normalized: whether vectors have length 1.
        dimension: the width of a vector.
        prompt: the text before each text.
        include_prompt: whether the prompt's tokens count in pooling.
        max_length: the maximum number of tokens of a text; ``None`` for no maximum.
        precision: what the backend computes in.
        backend, version: the backend and its package's version.
        quantizer: how an int8 model was calibrated; empty for others.
        settings: the session's ``padding``, whether rows run one at a time, ``batch_tokens`` if they do not and one
            changes another's results, and the options of the backend; empty for models without padding.
        stored: the type of the vectors, with a digest of the ranges; empty for float32.
    """

    model: str
    tokenizer: str
    pooling: str
    layers: str
    normalized: bool
    dimension: int
    prompt: str
    include_prompt: bool
    max_length: int | None
    precision: str
    backend: str
    version: str
    quantizer: str
    settings: str
    stored: str

    def __str__(self) -> str:
        return f"isorun-{_VERSION}-{sha256(json.dumps(asdict(self), sort_keys=True).encode())[:24]}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the string as ``identity``."""
        return {"identity": str(self), **asdict(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> VectorIdentity:
        """The inverse of :meth:`as_dict`; other keys of the record have no effect.

        Raises:
            InvalidArgument: the record is incomplete or damaged, was changed, or is of another version of isorun.
        """
        if not isinstance(record, Mapping):
            raise InvalidType(
                f"A record of vectors must be a mapping, such as `vector_record()` returns, got {type(record).__name__}"
            )
        names = [field.name for field in fields(cls)]
        if missing := [name for name in names if name not in record]:
            raise InvalidArgument(f"This is not a record of vectors: it lacks {', '.join(missing)}")
        hints = get_type_hints(cls)
        for name in names:
            value, kinds = record[name], get_args(hints[name]) or (hints[name],)
            if type(value) not in kinds or (type(value) is int and value < 1):
                expected = "a positive int" if int in kinds else f"a {kinds[0].__name__}"
                raise InvalidArgument(f"The record of vectors is damaged: {name} must be {expected}, got {value!r:.80}")
        identity = cls(**{name: record[name] for name in names})
        if record.get("identity") not in (None, str(identity)):
            raise InvalidArgument(
                f"The record of vectors was changed, or is of another version of isorun: its identity is "
                f"{record['identity']}, expected {identity}"
            )
        return identity


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether vectors may be searched together.

    Attributes:
        kind: ``"same"`` (equal within rounding), ``"compatible"`` (one side finds nearly the same neighbours in the
            other's vectors) or ``"different"``.
        reason: why, in words.
        fields: the fields of the records that differ.
        recall: the share of the ten nearest neighbours that is found, of the worse direction, if it was measured.
        unmeasured: whether it would have been, had both records the vectors of the probe texts.
    """

    kind: str
    reason: str
    fields: tuple[str, ...] = ()
    recall: Interval | None = None
    unmeasured: bool = False

    def __bool__(self) -> bool:
        return self.kind != "different"


def probe_texts() -> list[str]:
    """The texts on which two embedders are compared."""
    kinds = [corpus.texts(held_out=held_out) for held_out in (False, True)]
    return [text for listed in kinds for kind in _KINDS for text in listed[kind]]


def pack(vectors: np.ndarray) -> str:
    """Vectors of the probe texts, in the type in which they are stored, as text for JSON."""
    dtype = "<f4" if vectors.dtype.kind == "f" else vectors.dtype
    return base64.b64encode(np.ascontiguousarray(vectors, dtype).tobytes()).decode()


def unpack(record: Mapping[str, Any]) -> np.ndarray | None:
    """The vectors of the probe texts in a record, as a search compares them; ``None`` if it has none.

    Raises:
        InvalidArgument: they are not those of as many texts and values.
    """
    if (packed := record.get("probe")) is None:
        return None
    shape = (len(probe_texts()), record["dimension"])
    try:
        content = base64.b64decode(packed, validate=True)
        return vector_types.from_bytes(content, record["stored"].split(" ")[0], shape)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InvalidArgument(
            f"The probe vectors of the record are damaged, or of another version of isorun: {error}"
        ) from error


def compared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Compatibility:
    """Compare two records.

    Args:
        ours, theirs: from :meth:`isorun.Embedder.vector_record`; without ``probe``, nothing is measured.

    Raises:
        InvalidArgument: one is not such a record.
    """
    own, recorded = VectorIdentity.from_dict(ours), VectorIdentity.from_dict(theirs)
    differing = tuple(field.name for field in fields(own) if getattr(own, field.name) != getattr(recorded, field.name))
    if not differing:
        return Compatibility("same", "everything that the vectors depend on is equal")
    if meaning := [name for name in differing if name not in _NUMERIC]:
        stated = "; ".join(
            f"{name} is {_short(getattr(own, name))} and {_short(getattr(recorded, name))}" for name in meaning
        )
        return Compatibility("different", stated, differing)
    names = f"{', '.join(differing)} differ{'s' if len(differing) == 1 else ''}"
    mixes = "settings" in differing and any(f'"{_BATCHES}"' in record.settings for record in (own, recorded))
    if own.precision in _EXACT and recorded.precision in _EXACT and not mixes:
        return Compatibility("same", f"equal within the rounding of fp32; {names}", differing)
    first, second = unpack(ours), unpack(theirs)
    if first is None or second is None:
        why = f"{names}, and a record has no probe vectors to measure the loss with"
        return Compatibility("different", why, differing, unmeasured=True)
    both = [agreement(first, second, first).recall, agreement(second, first, second).recall]
    recall = min(both, key=lambda interval: interval.low)
    kind = "compatible" if recall.low >= _REQUIRED else "different"
    why = f"{names}: one side's queries find {recall} of the ten nearest neighbours in the other's vectors"
    return Compatibility(kind, why, differing, recall)


def settings_in(details: Mapping[str, Any], batch_tokens: int | None) -> str:
    """:attr:`VectorIdentity.settings`, from the details of a session's provenance and an embedder's argument."""
    settings = {name: details[name] for name in ("padding", "rows", "options") if name in details}
    if "padding" in settings:  # without what is known only once a batch has needed the packed graph
        settings["padding"] = settings["padding"]["requested"]
    if isinstance(settings.get("rows"), dict) and batch_tokens not in (None, 1):  # rows depend on one another
        settings["rows"] = {**settings["rows"], _BATCHES: batch_tokens}
    return json.dumps(settings, sort_keys=True, default=repr) if settings else ""


def digest_of(*parts: Any) -> str:
    """A digest of arrays and plain data."""
    return sha256(b"|".join(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() for part in parts))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 20 else f"{text[:16]}...{text[-1]}"
