"""Types that NumPy lacks: runtimes return them as others (fp8 as uint8, bf16 as fp16), or fail when they run."""

from __future__ import annotations

import re

from isorun.plugin import ModelInfo, TensorSpec, UnsupportedModel


def check_types(name: str, info: ModelInfo) -> None:
    """Reject a model with inputs or outputs of a type that NumPy lacks, such as bf16, fp8 and 4-bit integers.

    Raises:
        UnsupportedModel: one has such a type.
    """
    for kind, specs in (("input", info.inputs), ("output", info.outputs)):
        for spec in specs:
            elements = re.findall(r"tensor\((\w+)\)", spec.type)
            if any(element != "string" and TensorSpec("", element, ()).dtype is None for element in elements):
                raise UnsupportedModel(
                    f"{name} does not support the {kind} {spec.name!r} of type {spec.type}, which NumPy does not have. "
                    "Cast it to another type in the model, such as float"
                )
