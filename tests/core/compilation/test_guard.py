"""What a plugin does wrong in compile, run, report and close is an error of isorun about that plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backends
import isorun
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidArgument, UnsupportedModel
from isorun.plugin import Capabilities, registry
from isorun.testing import fakes

WRONG_RESULTS = {
    "a tuple": lambda results: tuple(results),
    "one output": lambda results: results[:1],
    "None": lambda results: None,
}


class Faulty(fakes.Right):
    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True, options={"at": "where", "result": "what"})

    def compile(self, model, config):
        fault(config.options.get("at") == "compile")
        fault(config.options.get("at") == "packed" and "NonZero" in str(model.path.read_bytes()))
        return _Faulty(model, config)


class _Faulty(fakes.RightExecutable):
    def run(self, output_names, feeds):
        assert isinstance(output_names, list), "concrete names"
        fault(self._options.get("at") == "run")
        results = super().run(output_names, feeds)
        return WRONG_RESULTS.get(self._options.get("result"), lambda each: each)(results)

    def report(self):
        fault(self._options.get("at") == "report")
        return super().report()

    def close(self):
        super().close()
        fault(self._options.get("at") == "close")


class NoDataDependentShapes(fakes.Right):
    capabilities = Capabilities(
        dialects=("primitive",), dynamic_shapes=True, data_dependent_shapes=False, fixed_threads=3
    )


def fault(here: bool) -> None:
    if here:
        raise KeyError("a bug")


@pytest.fixture(autouse=True)
def faulty() -> Iterator[None]:
    with backends.registered(faulty=Faulty, simple=NoDataDependentShapes):
        yield


def use(bert: Any, **options: Any) -> list[Any]:
    with isorun.Session(bert, "faulty", options=options) as session:
        assert session.provenance.backend == "faulty"
        return session.run(None, tiny.feeds())


@pytest.mark.parametrize("at", ["compile", "run", "report", "close"])
def test_exceptions_are_wrapped(bert, at):
    with pytest.raises(BackendFailed, match=rf"faulty: {at}\(\) raised KeyError: 'a bug'. Report it to") as caught:
        use(bert, at=at)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("result", WRONG_RESULTS)
def test_results_are_checked(bert, result):
    with pytest.raises(BackendFailed, match=r"faulty: run\(\) must return a list of 2 outputs, got"):
        use(bert, result=result)


def test_a_packed_graph_that_does_not_compile_is_replaced_once(bert, caplog):
    feeds = tiny.feeds(batch=4, length=32)
    feeds["attention_mask"][:, 3:] = 0
    with (
        isorun.Session(bert, "faulty", options={"at": "packed"}) as session,
        isorun.Session(bert, "reference") as reference,
    ):
        for _ in range(2):
            for output, other in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
                np.testing.assert_allclose(output, other, atol=1e-5)
        assert "KeyError: 'a bug'" in session.provenance.details["padding"]["removed"]
    (record,) = [each for each in caplog.records if "packed graph" in each.getMessage()]
    assert record.levelname == "WARNING"


def test_without_data_dependent_shapes_padding_is_kept(bert):
    with isorun.Session(bert, "simple") as session:
        assert "data-dependent shapes" in session.provenance.details["padding"]["removed"]
        assert session.provenance.threads == 3
    with pytest.raises(BackendUnavailable, match="data-dependent shapes"):
        isorun.Session(bert, "simple", padding="remove")


def test_fixed_threads_may_be_requested_and_no_other_number(bert):
    isorun.Session(bert, "simple", threads=3).close()
    with pytest.raises(BackendUnavailable, match=r"`threads` \(got 2\): .*fixed at 3"):
        isorun.Session(bert, "simple", threads=2)


@pytest.mark.parametrize("name", ["ort-cpu", "faulty", "auto", "a:b"])
def test_register_rejects_a_name(name):
    with pytest.raises(InvalidArgument, match=name):
        registry.register(name, fakes.Right)


def test_register_rejects_an_invalid_backend():
    class Odd(fakes.Right):
        capabilities = Capabilities(dialects=("latin",))

    with pytest.raises(InvalidArgument, match="unknown dialect 'latin'"):
        registry.register("odd", Odd)
    assert "odd" not in registry.names()


def test_error_of_isorun_passes_through(bert, monkeypatch):
    def refuse(*_: object) -> None:
        raise UnsupportedModel("it lacks Erf", ["Erf"])

    monkeypatch.setattr(Faulty, "compile", refuse)
    with pytest.raises(UnsupportedModel, match="it lacks Erf"):
        use(bert)
