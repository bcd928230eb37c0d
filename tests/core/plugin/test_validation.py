"""What plugins return and how their methods look is checked, and a mistake is an error about the plugin."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import isorun
from backends import registered
from isorun.errors import BackendFailed, InvalidArgument
from isorun.plugin import Executable, registry, validation
from isorun.types import RuntimeReport
from isorun_conformance.fakes import Right, RightExecutable

REPORT = RuntimeReport("cpu", "fp32", {"cpu": {"MatMul": 1}}, {"engine": "1.0"}, {"streams": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", None),
        ("precision", 32),
        ("precision", "float32"),
        ("precision", "int8+half"),
        ("operators", ["MatMul"]),
        ("operators", {"cpu": ["MatMul"]}),
        ("operators", {"cpu": {"MatMul": "1"}}),
        ("operators", {"cpu": {"MatMul": -1}}),
        ("versions", {"engine": (1, 0)}),
        ("versions", "1.0"),
        ("details", None),
        ("details", {1: "x"}),
        ("details", {"x": {1: "x"}}),
        ("details", {"x": [{"y": {1}}]}),
        ("details", {"x": float("nan")}),
        ("details", {"x": np.float64("inf")}),
    ],
)
def test_field_of_a_report_is_named(field: str, value: Any) -> None:
    assert validation.report_problem(REPORT) == ""
    problem = validation.report_problem(replace(REPORT, **{field: value}))
    assert f"a RuntimeReport whose `{field}` is " in problem
    assert problem.endswith(f"got {value!r}")


def test_report_with_a_wrong_field_is_an_error_about_the_plugin(bert: Any) -> None:
    class Reports(RightExecutable):
        def report(self) -> Any:
            return replace(REPORT, operators=["MatMul"])  # type: ignore[arg-type]

    class Wrong(Right):
        def compile(self, model: Any, config: Any) -> Any:
            return Reports(model, config)

    with (
        registered(**{"wrong-report": Wrong}),
        isorun.Session(bert, "wrong-report") as session,
        pytest.raises(BackendFailed) as raised,
    ):
        _ = session.provenance
    assert "wrong-report: report() must return a RuntimeReport whose `operators`" in str(raised.value)
    assert "got ['MatMul']. Report it" in str(raised.value)


def test_executable_with_another_signature_is_rejected() -> None:
    class OneArgument(RightExecutable):
        def run(self, feeds: Any) -> Any:  # type: ignore[override]
            return feeds

    class Bindless(RightExecutable):
        def bind(self, feeds: Any) -> Any:
            return feeds

    def new(cls: type[Executable]) -> Executable:
        return cls.__new__(cls)

    assert validation.executable_problem(new(RightExecutable)) == ""
    assert "`run` must accept (output_names, feeds), got run(feeds" in validation.executable_problem(new(OneArgument))
    assert "`bind` must accept (feeds, outputs)" in validation.executable_problem(new(Bindless))
    assert "Executable, got NoneType" in validation.executable_problem(None)


def version(self: Any, package: str) -> str:
    return package


async def installed(self: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("version", "1.2", "`version` must be a method, got str"),
        ("version", version, r"`version` must accept \(\), got version\(package"),
        ("compile", lambda self, model: None, r"`compile` must accept \(model, config\)"),
        ("installed", installed, "must not be a coroutine"),
        ("members", lambda self, cls: None, "members"),
    ],
)
def test_method_of_a_backend_with_another_signature_is_rejected(method: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        registry.register("odd", type("Odd", (Right,), {method: value}))
