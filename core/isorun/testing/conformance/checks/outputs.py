"""Checks of what run() returns: the requested outputs, of the declared types, in memory of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from isorun.testing.conformance.backend_under_test import named
from isorun.testing.conformance.checks.base import Checks, proves
from isorun.testing.conformance.sample_models import IdentityAndNegative, dense


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _unaligned(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "read-only": _read_only,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "unaligned": _unaligned,
}


class Outputs(Checks):
    """Names, types, memory."""

    @proves("results")
    def test_requested_outputs_in_the_requested_order(self) -> None:
        model = self.under_test.bert()
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            hidden, pooled = named(session, session.run(None, feeds)).values()
            for names, expected in (
                (["pooler_output"], [pooled]),
                (["pooler_output", "last_hidden_state"], [pooled, hidden]),
            ):
                outputs = session.run(names, feeds)
                assert len(outputs) == len(names), f"requested {len(names)} output(s), got {len(outputs)}"
                for array, other in zip(outputs, expected, strict=True):
                    np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)

    @proves("results")
    def test_outputs_have_the_declared_types_and_shapes(self) -> None:
        model = self.under_test.bert()
        with self.under_test.open(model) as session:
            for spec, value in zip(session.get_outputs(), session.run(None, model.feeds()), strict=True):
                assert isinstance(value, np.ndarray), f"{spec.name} must be an array, got {type(value).__name__}"
                wide = value.dtype == np.float64 and self.under_test.capabilities.precisions[0] == "fp64"
                assert wide or value.dtype == spec.dtype, f"{spec.name} must be {spec.dtype}, got {value.dtype}"
                assert spec.shape is not None
                pairs = zip(value.shape, spec.shape, strict=True)
                fits = all(size == declared for size, declared in pairs if isinstance(declared, int))
                assert fits, f"{spec.name} must have shape {spec.shape}, got {value.shape}"

    @proves("results")
    def test_no_later_run_changes_an_output(self) -> None:
        model = self.under_test.bert()
        with self.under_test.open(model, padding="keep") as session:
            first = session.run(None, model.feeds(1, mask="none"))
            kept = [array.copy() for array in first]
            for seed in range(2, 6):
                for array in session.run(None, model.feeds(seed, mask="none")):
                    assert not any(np.shares_memory(array, other) for other in first), "two runs share memory"
        for array, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(array, copy, err_msg="a later run, or close(), changed an output")
            assert array.flags.writeable, "an output is read-only; the caller owns it and may write to it"

    @proves("results")
    def test_run_does_not_change_its_feeds(self) -> None:
        model = self.under_test.bert()
        feeds = model.feeds()
        before = {name: array.copy() for name, array in feeds.items()}
        with self.under_test.open(model) as session:
            session.run(None, feeds)
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, before[name], err_msg=f"run() changed the feed {name!r}")

    @proves("results")
    def test_no_output_shares_memory_with_a_feed(self) -> None:
        """The caller may write to a feed again, also where the model hands it on unchanged."""
        model = IdentityAndNegative("identity", False, 4)
        with self.under_test.open(model) as session:
            feeds = model.feeds()
            for spec, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                shared = np.shares_memory(value, feeds["x"])
                assert not shared, f"the output {spec.name!r} shares memory with the feed 'x': copy it"
            self.under_test.assert_accurate(model, session, feeds)

    @proves("results")
    @pytest.mark.parametrize("layout", _LAYOUTS)
    def test_feeds_of_any_memory_layout(self, layout: str) -> None:
        model = dense()
        feeds = {"x": _LAYOUTS[layout](model.feeds()["x"])}
        with self.under_test.open(model) as session:
            self.under_test.assert_accurate(model, session, feeds)
