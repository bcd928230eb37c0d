"""Checks of errors: invalid feeds, and what a runtime raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from isorun.errors import BackendFailed, InvalidFeeds, InvalidModel, IsorunError, UnsupportedModel
from isorun.types import LoweredModel, ModelInfo, TensorSpec
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.sample_models import SUM, UNKNOWN_OPERATOR, parsed

_BAD_FEEDS: dict[str, tuple[str, Any]] = {
    "missing input": ("attention_mask", None),
    "unknown input": ("more", np.ones(1, np.int64)),
    "wrong dtype": ("input_ids", np.zeros((3, 12), np.int32)),
    "wrong rank": ("input_ids", np.zeros(36, np.int64)),
    "not an array": ("attention_mask", "a string"),
    "empty batch": ("input_ids", np.zeros((0, 12), np.int64)),
    "inconsistent sizes": ("attention_mask", np.ones((3, 11), np.int64)),
    "mask of floats": ("attention_mask", np.ones((3, 12), np.float32)),
    "other byte order": ("input_ids", np.zeros((3, 12), np.dtype(np.int64).newbyteorder())),
}
_INDICES = (-1, -(2**40), "rows", 2**31, 2**32 + 1)
_UNKNOWN = "Report it to the authors"  # of what a plugin should have wrapped
_RAISE_FROM = "the error has no cause: raise it `from` the runtime's error"


class Errors(Checks):
    """Invalid feeds and wrapped errors."""

    @proves("bad feeds")
    @pytest.mark.parametrize("kind", _BAD_FEEDS)
    def test_invalid_feeds_are_rejected_by_name(self, kind: str) -> None:
        name, value = _BAD_FEEDS[kind]
        model = self.under_test.encoder()
        feeds = {key: array for key, array in {**model.feeds(), name: value}.items() if array is not None}
        with self.under_test.open(model) as session:
            with pytest.raises(InvalidFeeds, match=name):
                session.run(None, feeds)
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("bad feeds")
    @pytest.mark.parametrize("index", _INDICES)
    def test_token_outside_the_vocabulary_is_rejected(self, index: int | str) -> None:
        model = self.under_test.encoder()
        outside = model.vocabulary if index == "rows" else int(index)
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            feeds["input_ids"][1, 2] = outside
            with pytest.raises(InvalidFeeds, match=rf"'input_ids'.*{outside}"):
                session.run(None, feeds)
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("masks of any values")
    @pytest.mark.parametrize("values", [(2, 2), (-1, -1), (1, 2)], ids=["twos", "negative", "segments"])
    def test_masks_of_other_values_than_0_and_1(self, values: tuple[int, int]) -> None:
        """Such feeds run the model as given, not the dialect of the fused graph, which gets 0 and 1 only."""
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            for mask in ("right", "holes"):
                feeds = model.feeds(mask=mask)
                real = feeds["attention_mask"]
                feeds["attention_mask"] = real * np.resize(np.repeat(np.array(values), 4), real.shape[1])
                self.under_test.assert_accurate(model, session, feeds, what=f"{model}, a {mask} mask of {values},")

    @proves("wrapped errors")
    def test_runtime_error_is_wrapped_with_its_cause(self) -> None:
        dynamic = self.under_test.capabilities.dynamic_shapes
        self.under_test.require(dynamic, "dynamic shapes, without which no run can fail")
        x, y = np.ones(2, np.float32), np.ones(3, np.float32)
        with self.under_test.open(parsed(SUM)) as session:
            with _expect_wrapped() as caught:
                session.run(None, {"x": x, "y": y})
            assert isinstance(caught[0], BackendFailed), f"a run that fails must raise BackendFailed, got {caught[0]!r}"
            assert caught[0].__cause__ is not None, _RAISE_FROM
            np.testing.assert_array_equal(session.run(None, {"x": y, "y": y})[0], [2, 2, 2])

    @proves("wrapped errors")
    def test_unknown_operator_is_named(self) -> None:
        with _expect_wrapped() as caught:
            self.under_test.open(parsed(UNKNOWN_OPERATOR)).close()
        assert isinstance(caught[0], UnsupportedModel | BackendFailed | InvalidModel), repr(caught[0])
        assert "Frobnicate" in str(caught[0]), f"the message does not name the operator: {caught[0]}"

    @proves("wrapped errors")
    def test_damaged_file_is_rejected_with_the_cause(self) -> None:
        """Bypasses the session, which would reject the file first."""
        self.under_test.require_available()
        path = self.under_test.folder / "damaged.onnx"
        path.write_bytes(b"\x08\x0a not a model")
        spec = (TensorSpec("x", "tensor(float)", (1,)),)
        dialect = self.under_test.capabilities.dialects[0]
        model = LoweredModel(path, dialect, "0" * 64, ModelInfo(spec, spec, 17), cached=False)
        with _expect_wrapped() as caught:
            self.under_test.backend.compile(model, self.under_test.config).close()
        assert caught[0].__cause__ is not None, _RAISE_FROM


@contextmanager
def _expect_wrapped() -> Iterator[list[IsorunError]]:
    """Fail unless one of isorun's errors is raised; append it to the list."""
    caught: list[IsorunError] = []
    try:
        yield caught
    except IsorunError as error:
        caught.append(error)
    except Exception as error:
        raise AssertionError(
            f"a {type(error).__name__} was not wrapped ({error}): call the runtime inside runtime_errors()"
        ) from error
    if not caught:
        pytest.fail("no error was raised")
    # isorun has wrapped it, without knowing what the runtime was doing.
    unknown = _UNKNOWN in str(caught[0])
    assert not unknown, f"an error was not wrapped ({caught[0]}): call the runtime inside runtime_errors()"
