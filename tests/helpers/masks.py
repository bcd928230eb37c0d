"""The small BERT with its mask under another name, or without one."""

from pathlib import Path

import numpy as np
import onnx_ir as ir

import small_bert
from isorun.graph.io import files

NAME = "input_mask"


def renamed(model: ir.Model, name: str | None) -> ir.Model:
    """The model with its mask called ``name``; ``None`` to have every token be real."""
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    if name is not None:
        mask.name = name
        return model
    shape = ir.node("Shape", [model.graph.inputs[0]])
    ones = ir.node("ConstantOfShape", [shape.outputs[0]], {"value": ir.tensor(np.ones(1, np.int64))})
    for position, node in enumerate((shape, ones)):
        model.graph.insert_before(model.graph[position], node)
    mask.replace_all_uses_with(ones.outputs[0])
    model.graph.inputs.remove(mask)
    return model


def write(path: Path, name: str | None, **settings: int) -> Path:
    """A small BERT of that mask as a file."""
    files.write(renamed(small_bert.build(**settings), name), path)
    return path


def feeds(mask: np.ndarray, name: str | None, seed: int = 0) -> dict[str, np.ndarray]:
    """Its feeds: those of :func:`small_bert.feeds`."""
    values = small_bert.feeds(mask, seed)
    real = values.pop("attention_mask")
    return values if name is None else {**values, name: real}
