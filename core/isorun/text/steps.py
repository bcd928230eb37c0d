"""What makes vectors of a model's outputs: which output, which layers, and the widths before and after them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from isorun.models.dense import Dense, Layer, LayerNorm
from isorun.models.sentence_settings import NORMALIZE, SentenceSettings
from isorun.models.vectors import POOLED, TOKENS
from isorun.text.heads import LOGITS


def in_float32(outputs: Iterable[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Outputs, those of a model in half precision in a type in which sums over tokens are exact enough."""
    return [output.astype(np.float32) if output.dtype == np.float16 else output for output in outputs]


def width_after(steps: Iterable[Layer | str], width: int, folder: Path) -> int:
    """The width of vectors after steps.

    Raises:
        InvalidModel: a layer expects another width.
    """
    for step in steps:
        if isinstance(step, Dense | LayerNorm):
            if (expected := step.weight.shape[-1]) != width:
                raise InvalidModel(f"A layer of {folder} expects {expected} values, got {width}")
            width = len(step.weight)
    return width


def steps_after(settings: SentenceSettings, normalize: bool | None) -> tuple[Layer | str, ...]:
    """What follows the pooling of an embedder.

    Args:
        settings: the model's.
        normalize: ``False`` to leave normalizations out.

    Raises:
        UnsupportedModel: the model is for another class.
        InvalidModel: its file was built without its layers.
    """
    if settings.saved_as == "CrossEncoder":  # sentence-transformers would ignore its modules
        raise UnsupportedModel(
            "The model's config_sentence_transformers.json has the model_type 'CrossEncoder'. Use isorun.CrossEncoder"
        )
    if settings.late_interaction is not None:
        raise UnsupportedModel("The model makes a vector for each token. Use isorun.MultiVectorEmbedder")
    if settings.splade is not None or settings.saved_as == "SparseEncoder":
        raise UnsupportedModel("The model was saved by a SparseEncoder. Use isorun.SparseEmbedder")
    if "dense" in settings.steps:
        raise InvalidModel(
            "The checkpoint of this ONNX file has dense layers after pooling, which an older isorun did not keep. "
            "Build it again: isorun build"
        )
    if normalize is False:
        return tuple(step for step in settings.steps if step != NORMALIZE)
    return settings.steps


def output_by_token(outputs: dict[str, int], requested: Any = None, *, pools: bool) -> str:
    """The output to compute: a vector for each token, or for each text if the model pools itself.

    Args:
        outputs: the names and ranks of an ONNX file's outputs; empty for a checkpoint.
        requested: the argument ``outputs`` of a session; what is no list is left to the session.
        pools: whether vectors of tokens are pooled after the model.

    Raises:
        InvalidArgument: several outputs are requested.
        InvalidModel: none is requested, and the file has several that may be meant.
    """
    if isinstance(requested, list | tuple):
        if len(requested) != 1:
            raise InvalidArgument(f"outputs must name a single output, got {list(requested)}")
        return str(requested[0])
    if not outputs:
        return TOKENS[0]  # of a checkpoint's graph
    by_token = [name for name, rank in outputs.items() if rank == 3 and name != LOGITS]
    named = [name for name in TOKENS if name in by_token]
    if not pools and not named and outputs.get(POOLED) == 2:
        return POOLED
    if named or len(by_token) == 1:
        return (named or by_token)[0]
    raise InvalidModel(
        f"Cannot tell which output has a vector for each token: expected {' or '.join(TOKENS)}, or a single output of "
        f"rank 3, got {', '.join(outputs)}. Pass outputs=[NAME]"
    )
