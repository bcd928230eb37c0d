"""Shapes of outputs by the names of dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from isorun.errors import UnsupportedModel
from isorun.types import ModelInfo, TensorSpec
from isorun_backends.output_shapes import output_shapes, sizes_of

INPUTS = (TensorSpec("x", "tensor(float)", ("batch", 4)),)


def info(*outputs):
    return ModelInfo(INPUTS, outputs, opset=17)


def test_dimensions_of_inputs_give_those_of_outputs():
    model = info(TensorSpec("y", "tensor(float16)", ("batch", 2)), TensorSpec("n", "tensor(int64)", ()))
    sizes = sizes_of(model, {"x": np.zeros((3, 4))})
    assert sizes == {"batch": 3}
    assert output_shapes(model, sizes) == {"y": ((3, 2), np.dtype(np.float16)), "n": ((), np.dtype(np.int64))}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec("found", "tensor(float)", ("count", 2)), r"output 'found' \(\('count', 2\)\) does not follow"),
        (TensorSpec("found", "tensor(float)", None), "does not follow"),
        (TensorSpec("found", "tensor(string)", (1,)), r"'found' is tensor\(string\), which has no place"),
    ],
)
def test_what_is_not_known_beforehand_is_refused(spec, message):
    with pytest.raises(UnsupportedModel, match=message):
        output_shapes(info(spec), {"batch": 3})
