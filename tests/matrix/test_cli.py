from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isorun_matrix.spec.spec import Spec

Isorun = Callable[..., "subprocess.CompletedProcess[str]"]

SMALL = "models: {m: {preset: bert-3l}}\nbackends: [ort-cpu, reference]\nshapes: [8x128, 1x8]\n"


def test_validate_says_how_much_there_is_to_do(isorun: Isorun, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SMALL)
    done = isorun("validate", tmp_path / "spec.yaml")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path}/spec.yaml is sound: 1 model, 2 workloads, 4 cells\n"


def test_a_wrong_spec_exits_with_2(isorun: Isorun, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SMALL + "secnds: 1\n")
    for command in ("validate", "run"):
        done = isorun(command, tmp_path / "spec.yaml")
        assert done.returncode == 2
        assert f"{tmp_path}/spec.yaml, line 4: secnds: there is no such key; did you mean 'seconds'?" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "."), "holds no run of a matrix"),
        (("run", "none.yaml"), "There is no spec at none.yaml"),
        (("report", ".", "--format", "pdf"), "pdf"),
    ],
)
def test_wrong_usage_exits_with_2(isorun: Isorun, arguments: tuple[str, ...], message: str) -> None:
    done = isorun(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_resume_needs_a_folder(isorun: Isorun, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SMALL)
    done = isorun("run", tmp_path / "spec.yaml", "--resume")
    assert done.returncode == 2
    assert "--resume needs the --out" in done.stderr


def test_the_schema_is_that_of_a_spec(isorun: Isorun) -> None:
    schema = json.loads(isorun("schema").stdout)
    assert set(schema["properties"]) == set(Spec.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Shape"]["anyOf"][0]["type"] == "string"
    assert schema["$defs"]["Entry"]["anyOf"][1]["additionalProperties"] is False


def test_the_command_imports_nothing_heavy_until_it_is_used() -> None:
    code = "import isorun_matrix.cli, sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert loaded.isdisjoint({"pydantic", "yaml", "rich.table", "numpy", "jinja2", "plotly", "stevedore"})
