"""The option ``dimensions``."""

from __future__ import annotations

from typing import Any

import pytest

from isorun.errors import BackendUnavailable
from isorun.plugin import ModelInfo, TensorSpec
from isorun_deepsparse.dimensions import sizes

IDS = TensorSpec("input_ids", "tensor(int64)", ("batch", "sequence"))
OPEN = ModelInfo((IDS,), (), 17, limits={"sequence": 512, "batch": None})
FIXED = ModelInfo((TensorSpec("x", "tensor(float)", (2, 3)),), (), 17)
SCALAR = ModelInfo((TensorSpec("x", "tensor(float)", ()),), (), 17)
NAMELESS = ModelInfo((IDS, TensorSpec("x", "tensor(float)", (2, None))), (), 17)
NO_RANK = ModelInfo((TensorSpec("x", "tensor(float)", None),), (), 17)


def test_returns_a_size_for_each_dimension() -> None:
    assert sizes("it", OPEN, {"sequence": 512, "batch": 8}) == {"batch": 8, "sequence": 512}
    assert sizes("it", FIXED, None) == sizes("it", FIXED, {}) == sizes("it", SCALAR, None) == {}


@pytest.mark.parametrize(
    ("info", "option", "message"),
    [
        (OPEN, None, 'batch and sequence.*"batch": 1, "sequence": 128'),
        (OPEN, {"batch": 1}, "no size for sequence"),
        (OPEN, {"batch": 1, "sequense": 128}, "'sequense'.*'sequence'"),
        (OPEN, {"batch": 0, "sequence": 128}, "'batch'.* 0"),
        (OPEN, {"batch": True, "sequence": 128}, "'batch'.*True"),
        (OPEN, {"batch": "1", "sequence": 128}, "'batch'.*'1'"),
        (OPEN, {"batch": 1, "sequence": 513}, "'sequence'.*512.*513"),
        (OPEN, "1x128", "'1x128'"),
        (FIXED, {"batch": 2}, "'batch'.*fixed"),
        (NAMELESS, {"batch": 1, "sequence": 8}, "'x' has dimensions without a name"),
        (NO_RANK, None, "'x' has dimensions without a name"),
    ],
)
def test_rejects_invalid_sizes(info: ModelInfo, option: Any, message: str) -> None:
    with pytest.raises(BackendUnavailable, match=message):
        sizes("it", info, option)
