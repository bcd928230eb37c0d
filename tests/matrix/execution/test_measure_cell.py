from __future__ import annotations

import pytest

from isorun.errors import BackendFailed
from isorun_matrix.execution.measure_cell import _check_precision, _share


@pytest.mark.parametrize(
    ("asked", "reported"), [("fp32", "fp32"), ("bf16", "bf16+fp32"), ("int8", "bf16+int8"), ("fp16", "fp16+fp32")]
)
def test_what_was_asked_for_may_keep_wider_layers(asked: str, reported: str) -> None:
    _check_precision({"backend": "b", "precision": asked}, reported)


@pytest.mark.parametrize(("asked", "reported"), [("fp32", "bf16"), ("fp32", "bf16+fp32"), ("bf16", "fp32")])
def test_what_was_not_asked_for_is_refused(asked: str, reported: str) -> None:
    with pytest.raises(BackendFailed, match=f"b was asked for {asked} and reports that it computes in") as refused:
        _check_precision({"backend": "b", "precision": asked}, reported)
    assert str(refused.value).endswith(f"computes in {reported}")


def test_a_quantized_model_is_told_its_precision() -> None:
    with pytest.raises(BackendFailed, match=r"fp32\+int8. A model that is quantized already runs under .*\[int8\]"):
        _check_precision({"backend": "b", "precision": "fp32"}, "fp32+int8")


def test_a_share_is_of_all_threads_together() -> None:
    assert _share(10, 30, 80) == 0.25
    assert _share(30, 10, 80) == 0  # a thread that had waited has ended
    assert _share(None, None, 80) is None
