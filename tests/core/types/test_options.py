"""Options of backends: declared once, validated in one place."""

import numpy as np
import pytest

from isorun.errors import InvalidOption
from isorun.plugin import registry
from isorun.types.options import Option, problems, read

DECLARED = {
    "mode": Option("how", "str", choices=("error", "build"), default="error"),
    "size": Option("how many", "int", default=3, minimum=0, maximum=5),
    "flag": Option("whether", "bool", default=False),
    "shapes": Option("which", "list"),
    "entries": Option("more", "mapping", default={}),
    "anything": "described in words",
}


def test_defaults_fill_in_for_omitted_options():
    assert read("b", DECLARED, {"size": 0}) == {
        **{"mode": "error", "size": 0, "flag": False, "shapes": None, "entries": {}, "anything": None}
    }


@pytest.mark.parametrize(
    ("options", "expected", "near"),
    [
        ({"mode": "bild"}, "'error', 'build'", "'build'"),
        ({"mode": [1]}, "'error', 'build'", None),
        ({"size": -1}, "from 0 to 5", None),
        ({"size": 6}, "from 0 to 5", None),
        ({"size": True}, "an integer", None),
        ({"size": None}, "an integer", None),
        ({"flag": 1}, "true or false", None),
        ({"shapes": "1x8"}, "a list", None),
        ({"entries": [1]}, "a mapping", None),
    ],
)
def test_rejects_an_invalid_value(options, expected, near):
    with pytest.raises(InvalidOption) as caught:
        read("b", DECLARED, options)
    (key, value) = next(iter(options.items()))
    assert isinstance(caught.value, ValueError)
    assert (caught.value.backend, caught.value.key) == ("b", key)
    message = str(caught.value)
    assert all(part in message for part in (key, expected, f"got {value!r}", near or ""))


PAIRS = {"pair": Option("which", choices=((1, 2), (3, 4))), "level": Option("how far", "int", choices=(0, 1))}


@pytest.mark.parametrize("value", [True, 1.0, "1", np.array([0, 1]), [1]], ids=str)
def test_a_choice_has_its_type(value):
    with pytest.raises(InvalidOption, match="must be one of 0, 1") as caught:
        read("b", PAIRS, {"level": value})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("value", [(3, 4), [3, 4]])
def test_a_choice_that_is_a_tuple_may_come_from_json(value):
    assert read("b", PAIRS, {"pair": value})["pair"] == (3, 4)


def test_rejects_an_unknown_key_and_suggests_the_nearest():
    with pytest.raises(InvalidOption, match="did you mean 'shapes'"):
        read("b", DECLARED, {"shape": ["1x8"]})


def test_reports_every_problem():
    assert [key for key, _ in problems(DECLARED, {"flag": 3, "size": 1, "other": 2})] == ["flag", "other"]


def test_scalars_of_numpy_are_read_as_those_of_python():
    options = {
        **{"mode": np.str_("build"), "size": np.int8(5), "flag": np.True_, "anything": np.float32(0.1)},
        **{"shapes": [np.int64(1), (np.uint8(2),)], "entries": {"a": {"b": np.bool_(False)}}},
    }
    read_options = read("b", DECLARED, options)
    assert repr(read_options) == repr(
        {
            **{"mode": "build", "size": 5, "flag": True, "shapes": [1, (2,)], "entries": {"a": {"b": False}}},
            "anything": 0.10000000149011612,
        }
    )
    with pytest.raises(InvalidOption, match="an integer from 0 to 5, got 6"):
        read("b", DECLARED, {"size": np.int8(6)})
    with pytest.raises(InvalidOption, match="an integer"):
        read("b", DECLARED, {"size": np.float32(3)})


@pytest.mark.parametrize("value", [3, "x", None, [1]])
def test_an_option_without_a_type_accepts_any_value(value):
    assert read("b", DECLARED, {"anything": value})["anything"] == value


@pytest.mark.parametrize(
    "name", ["ort-cpu", "ort-cuda", "ort-tensorrt", "ort-openvino", "ort-ep", "openvino", "tensorrt"]
)
def test_declared_defaults_are_valid(name):
    for key, option in registry.get(name).capabilities.options.items():
        assert isinstance(option, Option)
        assert option.problem(option.default) is None, key


def test_a_plugin_may_change_what_it_reads() -> None:
    """Neither the caller's settings nor the declared defaults."""
    declared = {"hints": Option("", "mapping", default={"levels": [1]}), "own": Option("", "mapping")}
    settings = {"own": {"levels": [2]}}
    for _ in range(2):
        options = read("b", declared, settings)
        assert options == {"hints": {"levels": [1]}, "own": {"levels": [2]}}
        for value in options.values():
            value["levels"].append(3)
            value["more"] = True
    assert settings == {"own": {"levels": [2]}}
