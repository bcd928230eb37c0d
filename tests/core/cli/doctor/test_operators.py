"""``isorun doctor --operators``: what has changed since a table of known faults was written."""

import numpy as np
import pytest

from isorun.cli.doctor import operator_tests, operators
from isorun.types.faults import Fault, KnownFaults
from isorun_backends.openvino.faults import ROWS


def fault(**changes):
    fields = {
        "operator": "Neg",
        "condition": "always",
        "result": "nothing",
        "versions": "0",
        "model": "g (float[n] x) => (float[n] y) { y = Neg (x) }",
        "feeds": {"x": np.ones(2, np.float32)},
    }
    return Fault(**{**fields, **changes})


def findings(monkeypatch, rows, *, node_tests=(), wrong=()):
    table = KnownFaults(rows=tuple(rows), node_tests=dict.fromkeys(node_tests, "a reason"))
    monkeypatch.setattr("isorun.plugin.faults.of", lambda _: table)
    monkeypatch.setattr(operator_tests, "wrong_node_tests", lambda name, at: iter(wrong))
    return [(finding.severity, finding.what) for finding in operators.findings("openvino", lambda step: None)]


def test_reports_rows_that_are_no_longer_needed(monkeypatch):
    ((severity, what),) = findings(monkeypatch, [fault()])
    assert severity == "warning"
    assert "no longer needed with openvino 20" in what


def test_reports_rows_that_do_not_help(monkeypatch):
    assert [severity for severity, _ in findings(monkeypatch, [fault(applies=lambda *_: True)])] == ["warning"]
    reported = findings(monkeypatch, [fault(applies=lambda *_: False)])
    assert [severity for severity, _ in reported] == ["warning", "error"]
    assert "not refused as declared, but right" in reported[1][1]


def test_reports_node_tests_that_have_changed(monkeypatch):
    reported = findings(monkeypatch, [], node_tests=["test_old", "test_known"], wrong=["test_new", "test_known"])
    assert [severity for severity, _ in reported] == ["error", "warning"]
    assert "computes ONNX's test_new wrongly" in reported[0][1]
    assert "no longer computes ONNX's test_old wrongly" in reported[1][1]


def test_reports_nothing_of_a_row_that_is_needed(monkeypatch):
    assert findings(monkeypatch, ROWS[:1]) == []


def test_backends_with_a_table_are_examined():
    assert {"openvino", "ort-cpu", "reference"} <= set(operators.declaring())


@pytest.mark.parametrize("flag", [[], ["--operators"]])
def test_operators_are_tested_on_request(isorun, monkeypatch, flag):
    requested = []
    monkeypatch.setattr("isorun.cli.doctor.examine", lambda *, operators: requested.append(operators) or [])
    assert isorun("doctor", *flag).code == 0
    assert requested == [bool(flag)]
