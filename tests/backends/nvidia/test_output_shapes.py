"""Shapes of outputs, derived from the names of dimensions."""

import numpy as np
import pytest

from isorun.errors import UnsupportedModel
from isorun.types import ModelInfo, TensorSpec
from isorun_backends.nvidia.output_shapes import output_shapes, sizes_of

INPUTS = (TensorSpec("x", "tensor(float)", ("batch", 4)),)


def info(*outputs):
    return ModelInfo(INPUTS, outputs, opset=17)


def test_dimensions_of_inputs_determine_those_of_outputs():
    model = info(TensorSpec("y", "tensor(float16)", ("batch", 2)), TensorSpec("n", "tensor(int64)", ()))
    sizes = sizes_of(model, {"x": np.zeros((3, 4))})
    assert sizes == {"batch": 3}
    assert output_shapes(model, sizes) == {"y": ((3, 2), np.dtype(np.float16)), "n": ((), np.dtype(np.int64))}


@pytest.mark.parametrize(
    ("type", "shape"), [("tensor(float)", ("count", 2)), ("tensor(float)", None), ("tensor(string)", (1,))]
)
def test_rejects_an_output_whose_size_is_unknown(type, shape):
    with pytest.raises(UnsupportedModel, match="'found'"):
        output_shapes(info(TensorSpec("found", type, shape)), {"batch": 3})
