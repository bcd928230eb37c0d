import copy
import inspect
import pickle

import pytest

import isorun
from isorun import errors
from isorun.errors import (
    BackendNotFound,
    BackendUnavailable,
    EnvironmentNotFound,
    InvalidOption,
    UnsupportedModel,
    WorkerDied,
    did_you_mean,
)

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_the_one_root_is_public_and_is_in_the_tree(cls):
    assert issubclass(cls, isorun.IsorunError)
    assert getattr(isorun, cls.__name__) is cls
    assert cls.__name__ in isorun.__all__
    assert cls.__name__ in errors.__doc__


WITH_ATTRIBUTES = [
    BackendNotFound("x", ["y"]),
    BackendUnavailable("x", "no driver", "Install one."),
    WorkerDied("It was killed", signal="SIGKILL", log="the end"),
    EnvironmentNotFound("x", ["y"]),
    InvalidOption("x", "key", "unknown option"),
    UnsupportedModel("no", ["com.x.Y"]),
]


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
@pytest.mark.parametrize(
    "error",
    [*WITH_ATTRIBUTES, *(cls("why") for cls in CLASSES if cls not in map(type, WITH_ATTRIBUTES))],
    ids=lambda error: type(error).__name__,
)
def test_an_error_goes_from_one_process_to_another(error, again):
    error.add_note("a note")
    copied = again(error)
    assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("name", "known", "ending"),
    [
        ("input_id", ["input_ids", "mask"], "; did you mean 'input_ids'? (known: input_ids, mask)"),
        ("INPUT_IDS", ["input_ids", "mask"], "; did you mean 'input_ids'? (known: input_ids, mask)"),
        ("zzz", ["b", "a"], "; known: a, b"),
        ("zzz", [], "; none are known"),
    ],
)
def test_did_you_mean(name, known, ending):
    assert did_you_mean(name, known) == ending
