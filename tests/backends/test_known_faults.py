"""What runtimes compute wrongly, according to their tables: rewritten, refused, or documented."""

from __future__ import annotations

from pathlib import Path

import pytest

import isorun
from isorun.cli.doctor import operator_tests
from isorun.plugin import faults, registry
from isorun.types.faults import CONSTANTS, Fault, KnownFaults
from isorun_backends import onnxruntime

DECLARING = ("openvino", "ort-cpu", "reference")
TABLES = {name: faults.of(registry.get(name)) for name in DECLARING}
ROWS = [
    pytest.param(name, row, id=f"{name}-{row.operator}-{index}")
    for name, table in TABLES.items()
    for index, row in enumerate(table.rows)
]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_session_returns_no_wrong_number(name: str, row: Fault) -> None:
    tested = operator_tests.try_row(name, row, with_raw=row.action == "documented")
    assert tested.session == {"rewritten": "right", "refused": "refused", "documented": tested.raw}[row.action]


@pytest.mark.long
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_row_is_still_needed(name: str, row: Fault) -> None:
    assert operator_tests.try_row(name, row).raw != "right"


@pytest.mark.long
@pytest.mark.parametrize("name", DECLARING[:2])
def test_wrong_node_tests_are_those_that_are_known(name: str) -> None:
    assert set(operator_tests.wrong_node_tests(name)) == set(TABLES[name].node_tests)


@pytest.mark.long
@pytest.mark.parametrize("name", DECLARING[:2])
def test_every_120th_node_test_is_right_or_known(name: str) -> None:
    assert set(operator_tests.wrong_node_tests(name, every=120)) <= set(TABLES[name].node_tests)


def test_refusal_names_the_node_the_reason_and_the_version() -> None:
    row = next(row for row in TABLES["openvino"].rows if row.operator == "RoiAlign")
    with pytest.raises(isorun.UnsupportedModel, match=r"'y' \(RoiAlign\).*2026\.4\.1.*`mode` = max") as caught:
        isorun.Session(operator_tests.model_of(row), "openvino")
    assert caught.value.operators == ("RoiAlign",)
    isorun.Session(operator_tests.model_of(row), "ort-cpu").close()


@pytest.mark.parametrize("row", [row for row in TABLES["openvino"].rows if row.operator == CONSTANTS])
def test_refusal_names_the_constant(row: Fault) -> None:
    with pytest.raises(isorun.UnsupportedModel, match="The constant 'c'"):
        isorun.Session(operator_tests.model_of(row), "openvino")


def lines(table: KnownFaults) -> list[str]:
    """The rows as docs/backends.md has them."""
    return [
        f"| `{row.operator}` | {row.condition} | {row.result} | {row.versions} | {row.action} |"
        if row.operator != CONSTANTS
        else f"| {row.operator} | {row.condition} | {row.result} | {row.versions} | {row.action} |"
        for row in table.rows
    ]


def test_docs_show_the_tables() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    for table in TABLES.values():
        assert "\n".join(lines(table)) in docs


def test_providers_of_openvino_have_its_rows() -> None:
    declared = registry.get("ort-openvino").capabilities.faults
    assert faults.of(registry.get("ort-openvino")).rows == TABLES["openvino"].rows
    text = Path(onnxruntime.__file__).parent / "declarations" / "onnxruntime_ep_openvino.toml"
    assert f'faults = "{declared}"' in text.read_text()
