"""Checks of feeds: their memory layout and types, that each value is read at each run, and that none is changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from isorun.errors import InvalidFeeds
from isorun.types import TensorSpec
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import default_value, four_outputs, of_type, unused_input
from isorun_conformance.sample_models import Dense, SampleModel, dense


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _unaligned(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "read-only": _read_only,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "rows of a larger array": lambda array: np.pad(array, ((1, 1), (0, 0)), mode="reflect")[1:-1],
    "columns of a larger array": lambda array: np.pad(array, ((0, 0), (1, 2)), mode="reflect")[:, 1:-2],
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "unaligned": _unaligned,
    "a dtype with metadata": lambda array: array.astype(np.dtype(array.dtype, metadata={"unit": "token"})),
}
_TYPES = (
    *("float16", "float", "double", "bool", "string"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_LARGE = 64  # rows: a feed of over a thousand values, of which NumPy prints the ends only
_NAMES: dict[str, dict[str, str]] = {
    "characters": {
        "x": "eingang ä/0",
        "a": "入力:1",
        "mid": "a.b",
        "zeta": "Zeta",
        "alpha": "zeta",
        "last": "out put",
    },
    # Which differ in what an identifier cannot hold only, and words of Python.
    "identifiers": {"x": "a.b", "a": "a_b", "mid": "c/d", "zeta": "c-d", "alpha": "c_d", "last": "class"},
    "words": {"x": "self", "a": "feeds", "mid": "None", "zeta": "1", "alpha": "output_names", "last": "lambda"},
}


class Inputs(Checks):
    """Feeds."""

    @proves("feeds")
    @pytest.mark.parametrize("layout", _LAYOUTS)
    def test_feeds_of_any_memory_layout(self, layout: str) -> None:
        for model in (dense(), self.under_test.encoder()):
            with self.under_test.open(model) as session:
                for seed in range(2):
                    # Each alone too: a runtime may copy all feeds if one of them needs it.
                    feeds = model.unmasked(seed)
                    for names in (*([name] for name in feeds), list(feeds)):
                        laid_out = {name: _LAYOUTS[layout](feeds[name]) for name in names}
                        self.under_test.assert_accurate(model, session, {**feeds, **laid_out})

    @proves("feeds")
    def test_run_does_not_change_its_feeds(self) -> None:
        for model in (dense(), self.under_test.encoder()):
            feeds = model.feeds()
            before = {name: array.copy() for name, array in feeds.items()}
            arrays = dict(feeds)
            with self.under_test.open(model) as session:
                session.run(None, feeds)
            assert list(feeds) == list(arrays), "run() changed the mapping of feeds"
            for name, array in feeds.items():
                assert array is arrays[name], f"run() replaced the feed {name!r} in the mapping"
                np.testing.assert_array_equal(array, before[name], err_msg=f"run() changed the feed {name!r}")

    @proves("feeds")
    def test_run_does_not_change_the_list_of_outputs(self) -> None:
        model = four_outputs(dynamic=self.under_test.capabilities.dynamic_shapes)
        lowered = self.under_test.lowered(model)
        requested = lowered.info.output_names[::-1]
        names = list(requested)
        with self.under_test.compiled(lowered) as executable:
            executable.run(names, model.feeds())
        assert names == requested, f"run() changed the list of the requested outputs {requested} to {names}"

    @proves("feeds")
    def test_every_value_is_read_at_every_run(self) -> None:
        """One value changes, in place: a result that is kept from an earlier run, for whatever reason, is wrong."""
        large = Dense("one-node", False, _LARGE)
        models: tuple[SampleModel, ...] = (self.under_test.encoder(), four_outputs(dynamic=False), large)
        for model in models:
            feeds = model.unmasked()
            with self.under_test.open(model, padding="keep") as session:
                self.under_test.assert_accurate(model, session, feeds)
                for name, index in itertools.product(feeds, (0, feeds[next(iter(feeds))].size // 2, -1)):
                    value = feeds[name].flat[index]
                    feeds[name].flat[index] = 1 - value if value in (0, 1) else value / 2
                    what = f"{model} after a change of one value of {name}"
                    self.under_test.assert_accurate(model, session, feeds, what=what)

    @proves("feeds")
    def test_feeds_in_any_order(self) -> None:
        for model in (self.under_test.encoder(), four_outputs(dynamic=False)):
            feeds = model.feeds()
            with self.under_test.open(model) as session:
                for names in itertools.permutations(feeds):
                    permuted = {name: feeds[name] for name in names}
                    what = f"{model} with its feeds in another order"
                    self.under_test.assert_accurate(model, session, permuted, what=what)

    @proves("feeds")
    def test_input_that_no_node_reads(self) -> None:
        model = unused_input(dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("feeds")
    def test_default_value_is_replaced_for_its_run_only(self) -> None:
        """A backend may reject a feed in its place."""
        model = default_value()
        with self.under_test.open_or_skip(model) as session:
            for seed in range(3):
                feeds = model.feeds(seed)
                self.under_test.assert_accurate(model, session, feeds, what="a run with the default value of an input")
                feeds["scale"] = np.array([5, -6, 7], np.float32)
                with suppress(InvalidFeeds):
                    what = "a run with a feed in the place of a default value"
                    self.under_test.assert_accurate(model, session, feeds, what=what)

    @proves("names")
    def test_names_of_inputs_and_outputs_may_hold_any_character(self) -> None:
        dynamic = self.under_test.capabilities.dynamic_shapes
        for kind, names in _NAMES.items():
            model = replace(four_outputs(dynamic=dynamic), name=kind, names=names)
            with self.under_test.open(model) as session:
                feeds = model.feeds()
                what = f"a model with the names {', '.join(names.values())}"
                self.under_test.assert_accurate(model, session, feeds, what=what)
                requested = [names[name] for name in ("alpha", "last", "mid")]
                outputs = dict(zip(requested, session.run(requested, feeds), strict=True))
                expected = self.under_test.expected(model, feeds)
                for name, value in outputs.items():
                    np.testing.assert_allclose(value, expected[name], rtol=1e-2, atol=1e-2, err_msg=name)

    @proves("types")
    @pytest.mark.parametrize("kind", _TYPES)
    def test_inputs_and_outputs_of_every_type(self, kind: str) -> None:
        dtype = TensorSpec("x", f"tensor({kind})", ()).dtype or np.dtype(object)
        model = of_type(kind, dtype, dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            for seed in range(2):
                self.under_test.assert_accurate(model, session, model.feeds(seed))

    @proves("types")
    def test_text_that_ends_in_nul_is_kept_or_rejected(self) -> None:
        """NumPy's own strings lose it."""
        model = of_type("string", np.dtype(object), dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            feeds = model.feeds()
            feeds["x"][0] = "\0", "text\0", "two\0\0"
            with suppress(InvalidFeeds):
                self.under_test.assert_accurate(model, session, feeds, what="a text that ends in NUL")
