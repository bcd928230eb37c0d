"""The sizes of symbolic dimensions: every one has one, and none has another's."""

from __future__ import annotations

from typing import Any

import pytest

from isorun.errors import BackendUnavailable
from isorun.types import ModelInfo, TensorSpec
from isorun_deepsparse.dimensions import sizes

IDS = TensorSpec("input_ids", "tensor(int64)", ("batch", "sequence"))
OPEN = ModelInfo((IDS,), (), 17, limits={"sequence": 512, "batch": None})
FIXED = ModelInfo((TensorSpec("x", "tensor(float)", (2, 3)),), (), 17)
SCALAR = ModelInfo((TensorSpec("x", "tensor(float)", ()),), (), 17)
NAMELESS = ModelInfo((IDS, TensorSpec("x", "tensor(float)", (2, None))), (), 17)
NO_RANK = ModelInfo((TensorSpec("x", "tensor(float)", None),), (), 17)


def test_each_dimension_gets_its_size() -> None:
    assert sizes("it", OPEN, {"sequence": 512, "batch": 8}) == {"batch": 8, "sequence": 512}
    assert sizes("it", FIXED, None) == sizes("it", FIXED, {}) == sizes("it", SCALAR, None) == {}


@pytest.mark.parametrize(
    ("info", "given", "says"),
    [
        (OPEN, None, 'leaves open the dimension batch and sequence.*"batch": 1, "sequence": 128'),
        (OPEN, {"batch": 1}, "leaves open the dimension sequence"),
        (OPEN, {"batch": 1, "sequense": 128}, "no symbolic dimension 'sequense'.*'sequence'"),
        (OPEN, {"batch": 0, "sequence": 128}, "the size of 'batch' is 0"),
        (OPEN, {"batch": True, "sequence": 128}, "the size of 'batch' is True"),
        (OPEN, {"batch": "1", "sequence": 128}, "the size of 'batch' is '1'"),
        (OPEN, {"batch": 1, "sequence": 513}, "sequence goes up to 512 in this model, not to 513"),
        (OPEN, "1x128", "dimensions is '1x128'"),
        (FIXED, {"batch": 2}, "no symbolic dimension 'batch'.*shapes are fixed"),
        (NAMELESS, {"batch": 1, "sequence": 8}, "'x' has dimensions without a name"),
        (NO_RANK, None, "'x' has dimensions without a name"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(info: ModelInfo, given: Any, says: str) -> None:
    with pytest.raises(BackendUnavailable, match=says):
        sizes("it", info, given)
