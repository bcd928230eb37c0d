"""What runtimes compute wrongly, according to their tables: rewritten, refused, or documented."""

import importlib
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common

import isorun
from isorun.cli.doctor import operator_tests
from isorun.graph.transforms import work_around
from isorun.plugin import faults, registry
from isorun.types.faults import CONSTANTS, EMPTY, Fault, KnownFaults
from isorun_backends import onnxruntime
from isorun_backends.onnxruntime import webgpu_faults

DECLARING = ("openvino", "ort-cpu", "reference")
WEBGPU = "ort-ep:webgpu"
TABLES = {name: faults.of(registry.get(name)) for name in DECLARING} | {WEBGPU: webgpu_faults.FAULTS}
ROWS = [
    pytest.param(name, row, id=f"{name}-{row.operator}-{index}")
    for name, table in TABLES.items()
    for index, row in enumerate(table.rows)
]


def _require(name: str, row: Fault) -> None:
    """Skip a row of a backend that this machine lacks, or whose device lacks fp16."""
    availability = registry.get(name).availability()
    if not availability.ok:
        pytest.skip(availability.reason)
    if name == WEBGPU and "float16" in row.model:
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float16[2] x) => (float16[2] y) { y = Add (x, x) }'
        )
        try:
            isorun.Session(model.SerializeToString(), name).close()
        except isorun.UnsupportedModel as error:
            pytest.skip(str(error))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_session_returns_no_wrong_number(name: str, row: Fault) -> None:
    _require(name, row)
    tested = operator_tests.try_row(name, row, with_raw=row.action == "documented")
    assert (
        tested.session
        == {
            "rewritten": "right",
            "checked": "error",
            "refused": "refused",
            "documented": tested.raw,
        }[row.action]
    )


@pytest.mark.long
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_row_is_still_needed(name: str, row: Fault) -> None:
    _require(name, row)
    if row.ends_process:
        code = (
            "from dataclasses import replace; from isorun.cli.doctor.operator_tests import try_row; "
            "from isorun.plugin import faults, registry; "
            f"row = faults.of(registry.get({name!r})).rows[{TABLES[name].rows.index(row)}]; "
            f"try_row({name!r}, replace(row, ends_process=False))"
        )
        try:
            ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=30)
        except subprocess.TimeoutExpired:  # it never ends
            return
        needed = ended.returncode < 0
    else:
        needed = operator_tests.try_row(name, row).raw != "right"
    version = metadata.version(registry.get(name).capabilities.package)
    if not needed and version not in row.versions:
        pytest.skip(f"repaired in {version}, and {row.versions} may be installed too")
    assert needed


@pytest.mark.long
@pytest.mark.parametrize("name", DECLARING[:2])
def test_wrong_node_tests_are_those_that_are_known(name: str) -> None:
    assert set(operator_tests.wrong_node_tests(name)) == set(TABLES[name].node_tests)


@pytest.mark.long
@pytest.mark.parametrize("name", DECLARING[:2])
def test_every_120th_node_test_is_right_or_known(name: str) -> None:
    assert set(operator_tests.wrong_node_tests(name, every=120)) <= set(TABLES[name].node_tests)


@pytest.mark.parametrize("row", [row for row in TABLES[WEBGPU].rows if row.rewrite], ids=lambda row: row.operator)
def test_what_webgpu_sums_in_fp16_is_rewritten_to_fp32(row: Fault) -> None:
    model = ir.serde.deserialize_model(operator_tests.model_of(row))
    assert work_around.apply(model, [row])
    (node,) = [node for node in model.graph if node.op_type == row.operator]
    common.ShapeInferencePass()(model)
    assert {value.dtype for value in node.inputs if value} == {ir.DataType.FLOAT}
    outputs = ReferenceEvaluator(ir.serde.serialize_model(model)).run(None, dict(row.feeds))
    assert row.expected is not None
    for output, expected in zip(outputs, row.expected, strict=True):
        assert output.dtype == np.float16
        np.testing.assert_allclose(output, expected, rtol=1e-3)


def test_short_sums_stay_in_fp16_on_webgpu() -> None:
    row = next(row for row in TABLES[WEBGPU].rows if row.operator == "MatMul")
    short = replace(row, model=row.model.replace("4096", "1024"))
    model = ir.serde.deserialize_model(operator_tests.model_of(short))
    assert not work_around.apply(model, [short])


@pytest.mark.parametrize(
    ("before", "apart"), [("Identity (x)", 1), ("Relu (x)", 0), ("Clip (x, zero)", 0), ("Clip (x)", 1)]
)
def test_onnxruntime_pads_in_the_pool_what_is_never_negative(before: str, apart: int) -> None:
    row = next(row for row in TABLES["ort-cpu"].rows if row.operator == "MaxPool")
    changed = row.model.replace("{ q = Pad (x, p)", f"{{ v = {before} q = Pad (v, p)").replace(
        "<int64[8]", "<float zero = {0}, int64[8]"
    )
    model = ir.serde.deserialize_model(operator_tests.model_of(replace(row, model=changed)))
    assert len(work_around.apply(model, [row])) == apart


def test_refusal_names_the_node_the_reason_and_the_version() -> None:
    row = next(row for row in TABLES["openvino"].rows if row.operator == "RoiAlign")
    with pytest.raises(isorun.UnsupportedModel, match=r"'y' \(RoiAlign\).*2026\.4\.1.*`mode` = max") as caught:
        isorun.Session(operator_tests.model_of(row), "openvino")
    assert caught.value.operators == ("RoiAlign",)
    isorun.Session(operator_tests.model_of(row), "ort-cpu").close()


@pytest.mark.parametrize("row", [row for row in TABLES["openvino"].rows if row.operator in (CONSTANTS, EMPTY)])
def test_refusal_names_the_constant(row: Fault) -> None:
    with pytest.raises(isorun.UnsupportedModel, match="The constant 'c'"):
        isorun.Session(operator_tests.model_of(row), "openvino")


def lines(table: KnownFaults) -> list[str]:
    """The rows as docs/runtime-faults.md has them."""
    return [
        f"| `{row.operator}` | {row.condition} | {row.result} | {row.versions} | {row.action} |"
        if row.operator not in (CONSTANTS, EMPTY)
        else f"| {row.operator} | {row.condition} | {row.result} | {row.versions} | {row.action} |"
        for row in table.rows
    ]


def test_docs_show_the_tables() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "runtime-faults.md").read_text(encoding="utf-8")
    for table in TABLES.values():
        assert "\n".join(lines(table)) in docs


def test_providers_of_openvino_have_its_rows() -> None:
    assert faults.of(registry.get("ort-openvino")).rows == TABLES["openvino"].rows
    path = Path(onnxruntime.__file__).parent / "declarations" / "onnxruntime_ep_openvino.toml"
    module, _, name = tomllib.loads(path.read_text(encoding="utf-8"))["faults"].partition(":")
    assert getattr(importlib.import_module(module), name).rows == TABLES["openvino"].rows
