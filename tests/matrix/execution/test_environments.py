"""Cells in isolated environments: made where they are missing, refused where they differ, and measured there."""

import os
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

import isolation
import programs
from isorun.errors import EnvironmentBroken
from isorun.isolation import environments
from isorun.isolation.environments import FOLDER_VARIABLE
from isorun_matrix.execution import environments as matrix_environments
from isorun_matrix.execution.progress import Lines
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.spec.spec import Spec
from matrix_runs import Isorun

ODD = Path(__file__).parents[2] / "core" / "isolation" / "worker" / "fakes"
IDENTITY = '<ir_version: 10, opset_import: ["" : 17]> g (float[batch] x) => (float[batch] y) { y = Identity (x) }'
QUICK = "repetitions: 2\nrounds: 1\nrepeats: 0\ncontrol: false\nwarmup: 0\nfeeds: 1\n"
QUICK += "reference: {backend: ort-cpu, precision: fp32}\n"
UV = """#!/bin/sh
for last; do :; done
case "$*" in
venv*)
    mkdir -p "$last/bin" "$last/lib/python3.0/site-packages"
    printf '#!/bin/sh\\nexec "{python}" "$@"\\n' > "$last/bin/python"
    chmod +x "$last/bin/python";;
*no-such*) echo "there is no such package"; exit 4;;
pip*) echo "$last" >> "{log}";;
esac
"""


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """A model of one operator that needs no token."""
    onnx.save(onnx.parser.parse_model(IDENTITY), tmp_path / "identity.onnx")
    return tmp_path


@pytest.fixture
def installed(environment: dict[str, str], tmp_path: Path) -> Path:
    """A folder of environments of the test's own, and a uv that makes them of the interpreter that runs the tests.

    Returns:
        The file that what it installs is written to.
    """
    log = tmp_path / "installed"
    uv = programs.write(tmp_path / "bin" / "uv", UV.format(python=sys.executable, log=log))
    environment[FOLDER_VARIABLE] = str(tmp_path / "environments")
    environment["PATH"] = f"{uv.parent}{os.pathsep}{environment['PATH']}"
    return log


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(QUICK + text)
    return path


def test_a_long_failure_is_shown_once_and_shortened_in_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    def fail(*_: object, **__: object) -> None:
        raise EnvironmentBroken(f"Cannot create it: {'downloading ' * 200}no such package")

    monkeypatch.setattr(environments, "create", fail)
    spec = {"models": {"m": {"preset": "bert-3l"}}, "shapes": ["1x8"], "environments": {"new": {"install": ["p"]}}}
    spec |= {"backends": [{"name": "ort-cpu", "environment": "new"}]}
    records, _ = matrix_environments.make(Spec.model_validate(spec), Lines())
    failure = records["new"].failure
    assert len(failure) < 700
    assert failure.startswith("Cannot create it: downloading")
    assert failure.endswith("no such package")
    assert capsys.readouterr().err.count("downloading") == 200


@pytest.mark.long
def test_missing_environments_are_created_once(isorun: Isorun, identity: Path, installed: Path, tmp_path: Path) -> None:
    text = """
models: {m: {path: identity.onnx, shapes: ['3']}}
environments:
  new: {install: [./package]}
  bad: {install: [no-such]}
  old: {python: "3.9"}
  idle: {install: [never-asked-for]}
backends:
  - ort-cpu
  - {name: ort-cpu, environment: new}
  - {name: ort-cpu, environment: bad}
  - {name: ort-cpu, environment: old}
"""
    (tmp_path / "package").mkdir()
    spec, out = write(tmp_path, text), tmp_path / "out"
    outlook = isorun("run", spec, "--dry-run").stdout.splitlines()
    assert outlook[0] == "1 model, 1 workload, 4 cells"
    assert outlook[1].startswith("environment new: to be created with Python 3.")
    assert outlook[1].endswith(f", installing {tmp_path}/package")
    assert outlook[3].startswith("environment old: cannot be created: ")
    assert outlook[4:6] == ["cell m/3/ort-cpu/fp32", "cell m/3/ort-cpu@new/fp32"]
    assert not installed.exists()
    assert not out.exists()

    done = isorun("run", spec, "--out", out)
    assert done.returncode == 1, done.stderr
    assert (
        f"Creating the environment new: {tmp_path}/package\nCreated the environment new with Python 3." in done.stderr
    )
    assert "environment new: Python 3." in done.stdout
    assert installed.read_text(encoding="utf-8") == f"{tmp_path}/package\n"
    run = RunFolder(out).run()
    own, isolated, bad, old = run.cells
    assert (own.environment, isolated.environment) == (None, "new")
    assert (own.result.provenance.environment, isolated.result.provenance.environment["name"]) == ({}, "new")
    assert isolated.result.memory_mib.peak > own.result.memory_mib.peak > 0
    assert run.environment.environments["new"].install == [f"{tmp_path}/package"]
    for lacking, word in ((bad, "there is no such package"), (old, "3.9")):
        assert lacking.status == "skipped"
        assert word in str(lacking.reason)

    again = isorun("run", spec, "--out", out, "--resume")
    assert "2 of 4 cells are measured and kept" in again.stderr
    assert "Creating the environment new" not in again.stderr
    assert installed.read_text(encoding="utf-8").count("\n") == 1

    folder, away = tmp_path / "environments" / "new", tmp_path / "away"
    folder.rename(away)
    (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho no network; exit 2\n")
    assert isorun("run", spec, "--out", out, "--resume").returncode == 1
    _, lost, *_ = RunFolder(out).run().cells
    assert lost == isolated.model_copy(update={"kept": lost.kept})
    assert "'new'" in str(lost.kept)
    away.rename(folder)

    write(tmp_path, text.replace("[./package]", "[other==2]"))
    refused = isorun("run", spec, "--dry-run")
    assert refused.returncode == 2
    assert "environments.new: " in refused.stderr
    assert "isorun env remove new" in refused.stderr


@pytest.mark.long
def test_a_backend_that_only_the_environment_has(isorun: Isorun, identity: Path, tmp_path: Path) -> None:
    """Its options are checked in the environment, and a worker that dies affects one cell only."""
    name = isolation.own_environment(environments.root(), "odd", ODD)
    text = f"""
models: {{m: {{path: identity.onnx, shapes: ['3']}}}}
backends:
  - {{name: odd, environment: {name}}}
  - {{name: odd, environment: {name}, label: crash, options: {{do: crash, in: compile}}}}
  - {{name: odd, environment: {name}, label: exit, options: {{do: exit, in: compile}}}}
  - {{name: absent, environment: {name}, label: absent}}
"""
    out = tmp_path / "out"
    assert isorun("run", write(tmp_path, text), "--out", out).returncode == 1
    right, crash, exit_, absent = RunFolder(out).run().cells
    assert (right.id, right.status) == (f"m/3/odd@{name}/fp32", "ok")
    assert (crash.status, exit_.status, absent.status) == ("crashed", "error", "unavailable")
    assert "SIGSEGV" in str(crash.reason)
    assert "isorun_isolation.py" in str(crash.log)  # where it crashed
    assert "code 7" in str(exit_.reason)
    assert "the runtime gives up" in str(exit_.log)
    assert f"isorun env create {name} " in str(absent.remedy)

    wrong = text.replace("name: odd", "name: odt", 1).replace("label: exit", "precisions: [bf16]", 1)
    refused = isorun("validate", write(tmp_path, wrong))
    assert refused.returncode == 2
    assert "backends[0].name: " in refused.stderr
    assert "backends[2].precisions[0]: " in refused.stderr


@pytest.mark.long  # the backends are real; those of test_a_backend_that_only_the_environment_has are not
def test_onnx_runtime_and_its_openvino_build_in_one_run(isorun: Isorun, bert: Path, tmp_path: Path) -> None:
    """The two cannot be installed together."""
    text = f"""
models: {{bert: {{path: "{bert}", shapes: [2x8]}}}}
environments:
  {isolation.OPENVINO}: {{python: "{isolation.openvino_python()}", install: ["{isolation.OPENVINO_WHEEL}"]}}
backends: [ort-cpu, {{name: ort-openvino, environment: {isolation.OPENVINO}}}]
"""
    out = tmp_path / "out"
    done = isorun("run", write(tmp_path, text), "--out", out)
    assert done.returncode == 0, done.stderr
    run = RunFolder(out).run()
    assert [cell.status for cell in run.cells] == ["ok", "ok"]
    packages = run.environment.environments[isolation.OPENVINO].packages
    assert f"onnxruntime-openvino=={packages['onnxruntime-openvino']}" == isolation.OPENVINO_WHEEL
    assert "onnxruntime" not in packages
    assert run.cells[1].result.provenance.operators.keys() == {"OpenVINOExecutionProvider"}
