import json
import shlex
from pathlib import Path

import pytest
import typer

import programs
from isorun_matrix import cli
from isorun_matrix.cli.run import running
from isorun_matrix.execution.progress import Lines
from isorun_matrix.spec.spec import Spec
from matrix_runs import Isorun

SMALL = "models: {m: {preset: bert-3l}}\nbackends: [ort-cpu, reference]\nshapes: [8x128, 1x8]\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "."), "not the folder of a run"),
        (("run", "none.yaml"), "none.yaml"),
        (("run", "wrong.yaml"), "wrong.yaml, line 4: secnds: "),
        (("validate", "wrong.yaml"), "'seconds'"),
        (("report", ".", "--format", "pdf"), "pdf"),
        (("run", "spec.yaml", "--resume"), "--resume needs --out"),
    ],
)
def test_wrong_usage_exits_with_2(
    isorun: Isorun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SMALL)
    (tmp_path / "wrong.yaml").write_text(SMALL + "secnds: 1\n")
    done = isorun(*arguments, refused=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_stopped_command_is_printed_with_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "s.yaml", "--only", "a/*", "--remeasure", "disturbed", "--out", str(tmp_path), "--resume"]
    app = typer.main.get_command(cli.app)
    with (
        app.make_context("matrix", [*words]) as parent,
        app.commands["run"].make_context("run", words[1:], parent=parent) as context,  # type: ignore[attr-defined]
        pytest.raises(typer.Exit),
        running(context, tmp_path, Lines()),
    ):
        raise KeyboardInterrupt
    again = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert again[:2] == ["isorun", "matrix"]
    assert {*again[2:]} == {*words}


def test_schema_of_a_spec(isorun: Isorun) -> None:
    schema = json.loads(isorun("schema").stdout)
    assert set(schema["properties"]) == set(Spec.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Shape"]["anyOf"][0]["type"] == "string"
    assert schema["$defs"]["Load"]["anyOf"][0]["pattern"] == "^(single-stream|offline)$"
    assert schema["$defs"]["Entry"]["anyOf"][1]["additionalProperties"] is False


def test_the_command_imports_nothing_heavy_until_it_is_used() -> None:
    loaded = set(programs.printed("import isorun_matrix.cli, sys; print(*sys.modules)").split())
    assert loaded.isdisjoint({"pydantic", "yaml", "rich.table", "numpy", "jinja2", "plotly", "stevedore"})


def test_init_writes_a_spec_that_is_valid(isorun: Isorun, tmp_path: Path) -> None:
    path = tmp_path / "new spec.yaml"
    written = isorun("init", path)
    assert written.returncode == 0
    assert f"isorun matrix run '{path}'" in written.stderr
    assert "ort-cpu" in path.read_text(encoding="utf-8")
    valid = isorun("validate", path)
    assert (valid.returncode, f"{path} is valid: 1 model, 1 workload, " in valid.stdout) == (0, True)
    again = isorun("init", path)
    assert (again.returncode, "exists" in again.stderr) == (2, True)
