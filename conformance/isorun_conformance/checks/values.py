"""Checks of operators beside those of encoders: indices, control flow, shapes that depend on values, sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from isorun.errors import IsorunError
from isorun.types import TensorSpec
from isorun_conformance.backend_under_test import named
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import (
    FUNCTIONS,
    LOOKUPS,
    OPSETS,
    Formula,
    at_large_values,
    branches,
    doublings,
    equal_values,
    joined,
    lookup,
    of_opset,
    places,
    sums,
)

_ARITHMETIC = ("float16", "float", "double", "int32", "int64", "uint8")
_ROUNDING = {"float16": 2e-3, "float": 1e-6, "double": 1e-12}
_FLOWS: dict[str, Callable[[], Formula]] = {"If": branches, "Loop": doublings}


class Values(Checks):
    """What depends on the values of feeds. A model that the runtime refuses is no failure."""

    @proves("index checks")
    @pytest.mark.parametrize("operator", LOOKUPS)
    def test_index_outside_its_table_is_an_error(self, operator: str) -> None:
        """isorun checks the indices itself for a backend that does not declare it."""
        self.under_test.require(self.under_test.capabilities.checks_indices, "checks of indices")
        with self.under_test.open_or_skip(lookup(operator)) as session:
            i, j = np.array([0, 2, 1]), np.array([0, 2, -2])

            def assert_right(when: str) -> None:
                (y,) = session.run(None, {"i": i, "j": j})
                np.testing.assert_allclose(y, [1, 5, 5], rtol=1e-2, err_msg=f"{operator} is wrong {when}")

            assert_right("inside its table")
            for index in (5, -6, 2**31, 2**40):
                try:
                    results = session.run(None, {"i": i, "j": np.array([0, index - 2, 0])})
                except IsorunError:
                    assert_right("after an index outside its table")
                    continue
                pytest.fail(f"{operator} at index {index} of 5 returned {results}, and checks_indices is declared")

    @proves("control flow")
    @pytest.mark.parametrize("operator", _FLOWS)
    def test_control_flow_follows_the_feeds(self, operator: str) -> None:
        """Of each run, not of the first one."""
        self._assert_right(_FLOWS[operator](), operator)

    @proves("opsets")
    @pytest.mark.parametrize("opset", OPSETS)
    def test_operators_of_older_and_newer_opsets(self, opset: int) -> None:
        """A model that is not an encoder arrives in its own opset, in which an operator may mean something else."""
        model = of_opset(opset, dynamic=self.under_test.capabilities.dynamic_shapes)
        with self.under_test.open_or_skip(model) as session:
            for seed in range(2):
                what = f"a model of opset {opset}, whose operators are not those of opset 17,"
                self.under_test.assert_accurate(model, session, model.feeds(seed), what=what)

    @proves("unusual values")
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_functions_at_large_values(self, function: str) -> None:
        """Neither infinite nor NaN: a softmax subtracts the maximum before it takes exponentials."""
        model = at_large_values(function)
        with self.under_test.open_or_skip(model) as session:
            for seed in range(3):
                (y,) = session.run(None, model.feeds(seed))
                expected = model.outputs(model.feeds(seed))["y"]
                what = f"{function} is wrong at large values"
                np.testing.assert_allclose(y, expected, rtol=2e-2, atol=2e-2, err_msg=what)

    @proves("unusual values")
    def test_first_of_equal_values_is_found(self) -> None:
        model = equal_values()
        with self.under_test.open_or_skip(model) as session:
            for seed in range(3):
                what = "the place of the largest or smallest of values that are equal"
                self.under_test.assert_accurate(model, session, model.feeds(seed), what=what)

    @proves("data-dependent shapes")
    def test_outputs_whose_shapes_depend_on_values(self) -> None:
        self.under_test.require(self.under_test.capabilities.data_dependent_shapes, "data-dependent shapes")
        self._assert_right(places(), "NonZero")

    @proves("types")
    @pytest.mark.parametrize("kind", _ARITHMETIC)
    def test_sums_are_those_of_their_type(self, kind: str) -> None:
        """A backend may reject numbers that it cannot hold."""
        dtype = TensorSpec("x", f"tensor({kind})", ()).dtype
        assert dtype is not None
        model = sums(kind, dtype)
        declared = self.under_test.capabilities
        exact = declared.tolerance(declared.precisions[0]) == declared.precisions[0] == "fp32"
        self.under_test.require(exact or dtype.kind != "f", "the rounding errors of fp32")
        with self.under_test.open_or_skip(model) as session:
            for seed in range(3):
                feeds = model.feeds(seed)
                try:
                    outputs = named(session, session.run(None, feeds))
                except IsorunError:
                    continue
                limit = _ROUNDING.get(kind, 0)
                what = f"a sum in {kind} is not what this type holds"
                for name, expected in model.outputs(feeds).items():
                    if limit:
                        np.testing.assert_allclose(outputs[name], expected, rtol=limit, atol=limit, err_msg=what)
                    else:  # assert_allclose compares integers in double
                        np.testing.assert_array_equal(outputs[name], expected, err_msg=what)

    @proves("dynamic shapes")
    def test_dimension_of_no_elements(self) -> None:
        """As the columns of what is not there yet: the key-value cache of a decoder, at first."""
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        model = joined()
        with self.under_test.open_or_skip(model) as session:
            for seed in range(6):
                feeds = model.feeds(seed)
                try:
                    outputs = named(session, session.run(None, feeds))
                except IsorunError:
                    continue
                shapes = " and ".join(str(array.shape) for array in feeds.values())
                for name, expected in model.outputs(feeds).items():
                    what = f"{name} is wrong for arrays of {shapes}"
                    np.testing.assert_allclose(outputs[name], expected, rtol=5e-2, atol=5e-2, err_msg=what)

    def _assert_right(self, model: Formula, operator: str) -> None:
        with self.under_test.open_or_skip(model) as session:
            for seed in range(6):
                feeds = model.feeds(seed)
                (y,) = session.run(None, feeds)
                expected = model.outputs(feeds)["y"]
                assert y.shape == expected.shape, f"{operator} returned {y.shape}, expected {expected.shape}"
                np.testing.assert_allclose(y, expected, rtol=1e-2, err_msg=f"{operator} does not follow its feeds")
