import pytest

from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import runtime_errors


def lacking(error: Exception) -> UnsupportedModel | None:
    return UnsupportedModel(f"it lacks {error}", ["Sin"]) if isinstance(error, KeyError) else None


@pytest.mark.parametrize("recognise", [None, lacking])
def test_wraps_a_runtime_error(recognise):
    error = OSError("no such device")
    with pytest.raises(BackendFailed) as caught, runtime_errors("it cannot load", recognise):
        raise error
    assert str(caught.value) == "it cannot load: no such device"
    assert caught.value.__cause__ is error


def test_converts_recognized_errors():
    error = KeyError("Sin")
    with pytest.raises(UnsupportedModel, match="it lacks 'Sin'") as caught, runtime_errors("it cannot load", lacking):
        raise error
    assert (caught.value.operators, caught.value.__cause__) == (("Sin",), error)


def test_passes_isorun_errors_through():
    error = InvalidFeeds("empty")
    with pytest.raises(InvalidFeeds) as caught, runtime_errors("it failed", lacking):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None
