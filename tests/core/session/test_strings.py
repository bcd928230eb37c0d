"""Tensors of strings: fed and given alike on every backend."""

import numpy as np
import onnx
import pytest

import isorun
import onnx_text
import programs
from backends import BACKENDS
from isorun.errors import InvalidFeeds

PICK = onnx_text.graph("pick (string[n] x, int64[k] at) => (string[k] y) { y = Gather(x, at) }")
WORDS = ["a", "bé", "", "long enough to be anywhere"]
AT = np.array([1, 3, 2])


@pytest.fixture(params=BACKENDS)
def session(request):
    with isorun.Session(PICK, request.param) as session:
        yield session


@pytest.mark.parametrize(
    "words", [WORDS, np.array(WORDS), np.array(WORDS, dtype=object), np.array([*WORDS, "b"] * 2)[:8:2]]
)
def test_strings_are_returned_as_objects(session, words):
    (output,) = session.run(None, {"x": words, "at": AT})
    assert output.dtype == object
    assert list(output) == [list(words)[at] for at in AT]
    assert all(isinstance(word, str) for word in output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (np.array([b"a", b"b"]), "'x' must contain strings, got bytes"),
        (np.array([1, 2]), "'x' must contain strings, got 1"),
        (np.array(["a", None], dtype=object), "'x' must contain strings, got None"),
        (np.array(["a", 0.0], dtype=object), "'x' must contain strings, got 0"),
        (np.array([["a"]]), "'x' must have 1 dimension "),
        (7, "'x' must be a numpy.ndarray of strings"),
    ],
)
def test_rejects_values_that_are_not_strings(session, words, message):
    with pytest.raises(InvalidFeeds, match=message):
        session.run(None, {"x": words, "at": AT})
    assert session.run(None, {"x": WORDS, "at": AT})[0][0] == "bé"


@pytest.mark.parametrize("words", [np.array([*WORDS, "b"] * 2, dtype=object).reshape(5, 2).T[0], WORDS])
def test_strings_of_any_layout_and_in_lists(session, words):
    binding = session.io_binding()
    binding.bind_cpu_input("x", words)
    binding.bind_cpu_input("at", AT)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    expected = [list(words)[at] for at in AT]
    assert list(binding.copy_outputs_to_cpu()[0]) == expected
    assert list(session.run(None, {"x": words, "at": AT})[0]) == expected


def test_a_string_that_ends_in_nul_is_kept_or_refused(session):
    words = ["a\0", "b\0c", "c", "d\0\0"]
    try:
        (kept,) = session.run(None, {"x": words, "at": AT})
    except InvalidFeeds as error:
        assert "NUL" in str(error)  # noqa: PT017
        words = ["a", "b\0c", "c", "d"]
        (kept,) = session.run(None, {"x": words, "at": AT})
    assert list(kept) == [words[at] for at in AT]


def test_strings_are_bound(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.array(WORDS, dtype=object))
    binding.bind_cpu_input("at", AT)
    binding.bind_output("y")
    for _ in range(2):
        session.run_with_iobinding(binding)
        assert list(binding.copy_outputs_to_cpu()[0]) == [WORDS[at] for at in AT]


def test_strings_are_passed_through(tmp_path):
    """In a separate process, which OpenVINO would crash when the session is closed."""
    path = tmp_path / "on.onnx"
    onnx.save(
        onnx_text.graph("on (string[n] x) => (string[n] y, string[n] z) { z = Identity(x) y = Identity(z) }"), path
    )
    code = f"""
import isorun
with isorun.Session({str(path)!r}, "openvino") as session:
    for words in (["a", "b"], ["more than fits in a short string"] * 3):
        first, second = session.run(None, {{"x": words}})
        assert list(first) == list(second) == words, (first, second)
"""
    programs.printed(code)
