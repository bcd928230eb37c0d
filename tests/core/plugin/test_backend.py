from __future__ import annotations

import pytest

from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import runtime_errors


def lacking(error: Exception) -> UnsupportedModel | None:
    return UnsupportedModel(f"it lacks {error}", ["Sin"]) if isinstance(error, KeyError) else None


@pytest.mark.parametrize("recognise", [None, lacking])
def test_what_a_runtime_raises_is_a_failure_with_its_error_as_the_cause(recognise):
    error = OSError("no such device")
    with pytest.raises(BackendFailed) as caught, runtime_errors("it cannot load", recognise):
        raise error
    assert str(caught.value) == "it cannot load: no such device"
    assert caught.value.__cause__ is error


def test_what_a_backend_recognises_is_what_it_says():
    error = KeyError("Sin")
    with pytest.raises(UnsupportedModel, match="it lacks 'Sin'") as caught, runtime_errors("it cannot load", lacking):
        raise error
    assert (caught.value.operators, caught.value.__cause__) == (("Sin",), error)


def test_isorun_s_own_errors_pass():
    error = InvalidFeeds("empty")
    with pytest.raises(InvalidFeeds) as caught, runtime_errors("it failed", lacking):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None
