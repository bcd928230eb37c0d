"""Checks of what goes wrong: bad feeds, and a runtime's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from isorun.errors import BackendFailed, InvalidFeeds, InvalidModel, IsorunError, UnsupportedModel
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.subject import Checks
from isorun.types import LoweredModel, ModelInfo, TensorSpec

_BAD_FEEDS: dict[str, tuple[str, Any]] = {
    "a name too few": ("attention_mask", None),
    "a name too many": ("more", np.ones(1, np.int64)),
    "another dtype": ("input_ids", np.zeros((3, 12), np.int32)),
    "a dimension too few": ("input_ids", np.zeros(36, np.int64)),
    "no array": ("attention_mask", "a string"),
    "an empty batch": ("input_ids", np.zeros((0, 12), np.int64)),
    "sizes that disagree": ("attention_mask", np.ones((3, 11), np.int64)),
}
_INDICES = (-1, -(2**40), "rows", 2**31, 2**32 + 1)


class Failures(Checks):
    """Bad feeds and wrapped errors."""

    @proves("bad feeds")
    @pytest.mark.parametrize("kind", _BAD_FEEDS)
    def test_bad_feeds_are_refused_by_name(self, kind: str) -> None:
        name, value = _BAD_FEEDS[kind]
        model = self.subject.bert()
        feeds = {key: array for key, array in {**model.feeds(), name: value}.items() if array is not None}
        with self.subject.open(model) as session:
            with pytest.raises(InvalidFeeds, match=name):
                session.run(None, feeds)
            self.subject.assert_right(model, session, model.feeds())

    @proves("bad feeds")
    @pytest.mark.parametrize("index", _INDICES)
    def test_a_token_outside_the_vocabulary_is_refused(self, index: int | str) -> None:
        """By the runtime, where ``checks_indices`` declares that it looks, else by the session."""
        model = self.subject.bert()
        outside = model.vocabulary if index == "rows" else int(index)
        with self.subject.open(model) as session:
            feeds = model.feeds()
            feeds["input_ids"][1, 2] = outside
            with pytest.raises(InvalidFeeds, match=f"'input_ids' holds {outside}"):
                session.run(None, feeds)
            self.subject.assert_right(model, session, model.feeds())

    @proves("wrapped errors")
    def test_a_runtimes_failure_is_wrapped_with_its_cause(self) -> None:
        self.subject.require(
            self.subject.capabilities.dynamic_shapes, "dynamic shapes, without which there is nothing to fail on"
        )
        y, one = np.ones(3, np.float32), np.ones(2, np.float32)
        with self.subject.open(_sum_of_any_lengths()) as session:
            with _expect_wrapped() as caught:
                session.run(None, {"x": one, "y": y})
            failure = caught[0]
            assert isinstance(failure, BackendFailed), f"a failed run is BackendFailed; this is {failure!r}"
            assert failure.__cause__ is not None, "the runtime's own error is not its cause: raise it `from error`"
            np.testing.assert_array_equal(session.run(None, {"x": y, "y": y})[0], [2, 2, 2])

    @proves("wrapped errors")
    def test_an_operator_that_no_runtime_has(self) -> None:
        with _expect_wrapped() as caught:
            self.subject.open(_unknown_operator()).close()
        assert isinstance(caught[0], UnsupportedModel | BackendFailed | InvalidModel), repr(caught[0])
        assert "Frobnicate" in str(caught[0]), f"the message does not name the operator: {caught[0]}"

    @proves("wrapped errors")
    def test_a_damaged_file_is_refused_with_the_cause(self) -> None:
        """Past the session's own checks: the cache looks at its files, a disk can still fail."""
        self.subject.require_available()
        path = self.subject.folder / "damaged.onnx"
        path.write_bytes(b"\x08\x0a not a model")
        spec = (TensorSpec("x", "tensor(float)", (1,)),)
        model = LoweredModel(
            path, self.subject.capabilities.dialects[0], "0" * 64, ModelInfo(spec, spec, 17), cached=False
        )
        with _expect_wrapped() as caught:
            self.subject.backend.compile(model, self.subject.config).close()
        assert caught[0].__cause__ is not None, "the runtime's own error is not its cause: raise it `from error`"


@contextmanager
def _expect_wrapped() -> Iterator[list[IsorunError]]:
    """An error of isorun's own has to be raised, and is put in the list; any other is the check's failure."""
    caught: list[IsorunError] = []
    try:
        yield caught
    except IsorunError as error:
        caught.append(error)
    except Exception as error:
        raise AssertionError(
            f"a {type(error).__name__} came through as it is ({error}): enter the runtime inside runtime_errors()"
        ) from error
    if not caught:
        pytest.fail("nothing was raised")


def _sum_of_any_lengths() -> bytes:
    import onnx.parser

    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch] x, float[sequence] y) => (float[sequence] z) { z = Add (x, y) }"""
    content: bytes = onnx.parser.parse_model(text).SerializeToString()
    return content


def _unknown_operator() -> bytes:
    import onnx.parser

    text = """<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>
        g (float[4] x) => (float[4] y) { y = nowhere.Frobnicate (x) }"""
    content: bytes = onnx.parser.parse_model(text).SerializeToString()
    return content
