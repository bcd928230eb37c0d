"""What is common to all commands: exit codes, messages, help, commands of other packages."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from isorun import cli, errors
from isorun.cli import app
from onnx_text import graph

COMMANDS = app.COMMANDS


def _process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isorun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


def test_help_and_version_in_a_process() -> None:
    helped, versioned = _process("--help"), _process("--version")
    assert (helped.returncode, helped.stderr) == (0, "")
    for name in (*COMMANDS, "matrix"):
        assert f"\n  {name} " in helped.stdout
    assert versioned.stdout == f"isorun {metadata.version('isorun')}\n"


def test_what_a_runtime_prints_does_not_spoil_results(tmp_path: Path) -> None:
    """Libraries print to the file descriptor, past Python's streams."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.ones(2, np.float32))
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from isorun.cli import main\n"
        "from isorun.plugin import registry\n"
        "Reference = type(registry.get('reference'))\n"
        "class Loud(Reference):\n"
        "    def compile(self, model, config):\n"
        "        os.write(1, b'an advertisement\\n')\n"
        "        return super().compile(model, config)\n"
        "registry.register('loud', Loud)\n"
        "sys.exit(main())\n"
    )
    command = ["run", "model.onnx", "--backend", "loud", "--feeds", "feeds.npz", "--json"]
    ran = subprocess.run([sys.executable, program, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["outputs"]["y"]["first"] == [-1.0, -1.0]
    assert "an advertisement" in ran.stderr


def test_every_command_is_listed() -> None:
    folder = Path(cli.__file__).parent
    files = [path for path in folder.rglob("*.py") if "\napp = typer.Typer(" in path.read_text(encoding="utf-8")]
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in files}
    assert modules - {"app"} == {app._MODULES.get(name, name) for name in COMMANDS}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from isorun.cli import main; main(['--help']);"
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'openvino', 'tokenizers', 'rich', 'pydantic', 'isorun_matrix',"
        "'isorun_backends', 'isorun.cli.run'};"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("name", [*COMMANDS, "conformance"])
def test_every_command_has_help(isorun: Callable[..., Any], name: str) -> None:
    ran = isorun(name, "--help")
    assert ran.code == 0
    assert f"Usage: isorun {name}" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_wrong_usage_is_2_and_suggests_a_command(isorun: Callable[..., Any]) -> None:
    ran = isorun("inspct", "m.onnx")
    assert ran.code == 2
    assert "'inspect'" in ran.err
    assert isorun("run").code == 2
    assert isorun("run", "m.onnx", "--bakend", "x").code == 2


_ERRORS = [
    (errors.ParityError("off"), 1),
    (errors.InvalidModel("off"), 2),
    (errors.BackendNotFound("x", ["y"]), 2),
    (OSError(28, "No space left on device", "file"), 2),
    (OSError(28, "m.onnx cannot be written: No space left on device"), 2),
    (errors.BackendUnavailable("x", "why", "What to do."), 3),
    (errors.BackendFailed("off"), 3),
    (errors.UnsupportedModel("off"), 3),
]


@pytest.mark.parametrize(("error", "code"), _ERRORS, ids=lambda value: type(value).__name__)
def test_errors_are_one_message_and_a_code(
    isorun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr("isorun.system.cache.Cache.__init__", lambda *_: fail(_))
    ran = isorun("cache")
    assert (ran.code, ran.out, ran.err) == (code, "", f"isorun: {error}\n")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    missing = str(tmp_path / "m.onnx")
    plain, debugged = _process("inspect", missing), _process("--debug", "inspect", missing)
    assert plain.stderr.startswith("isorun: ")
    assert missing in plain.stderr
    assert plain.stderr.count("\n") == 1
    assert "Traceback" in debugged.stderr
    assert "InvalidModel" in debugged.stderr


def test_closed_pipe_prints_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "isorun", "--help"]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["models", "--json"]])
def test_full_disk_of_standard_output_is_named(arguments: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "isorun", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("isorun: Cannot write to standard output")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("isorun run --backend ort-c", {"ort-cpu", "ort-cuda"}),
        ("isorun run --backend ort-cpu,openv", {"ort-cpu,openvino"}),
        ("isorun embed --precision f", {"fp64", "fp32", "fp16"}),
        ("isorun parity --backends ort-c", {"ort-cpu", "ort-cuda"}),
        ("isorun run --precision a", {"auto"}),
        ("isorun parity --precision a", set()),
        ("isorun choose --backend ort-c", {"ort-cpu", "ort-cuda"}),
        ("isorun conformance ort-c", {"ort-cpu", "ort-cuda"}),
        ("isorun run --prov", {"--provenance"}),
    ],
)
def test_shells_complete_values(
    isorun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: str, expected: set[str]
) -> None:
    monkeypatch.setenv("_ISORUN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    ran = isorun()
    assert (ran.code, set(ran.out.split())) == (0, expected)


def test_characters_that_standard_output_lacks_are_escaped(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", graph("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "入力"
    onnx.save(model, path)
    command = [sys.executable, "-m", "isorun", "inspect", str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u5165" in done.stdout


def test_exit_code_is_kept_with_closed_standard_streams(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m isorun inspect {tmp_path / 'none.onnx'} >&- 2>&-"
    assert subprocess.run(shell, shell=True, check=False).returncode == 2


def test_without_typer_it_says_what_to_install(isorun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "isorun.cli.app", raising=False)
    monkeypatch.delattr("isorun.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    ran = isorun("--help")
    assert ran.code == 2
    assert "pip install 'isorun[cli]'" in ran.err


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of other packages: one that works, broken ones, and one whose name is taken."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "working_plugin.py").write_text(
        '"""Greet somebody.\n\nMore of it."""\nimport typer\napp = typer.Typer()\n'
        "@app.command()\ndef greet(name: str) -> None:\n    print(f'hello {name}')\n"
    )
    (tmp_path / "broken_plugin.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "odd_plugin.py").write_text("app = 3\n")
    points = metadata.EntryPoints(
        metadata.EntryPoint(name, f"{module}:app", "isorun.commands")
        for name, module in (
            ("greet", "working_plugin"),
            ("broken", "broken_plugin"),
            ("odd", "odd_plugin"),
            ("gone", "no_such_package.cli"),
            ("run", "working_plugin"),
        )
    )
    monkeypatch.setattr(metadata, "entry_points", lambda **_: points)


def test_commands_of_other_packages_are_listed_without_importing_them(
    isorun: Callable[..., Any], plugins: None
) -> None:
    ran = isorun("--help")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["greet", "Greet", "somebody."] in lines
    assert ["broken", "A", "command", "of", "isorun."] in lines
    assert "working_plugin" not in sys.modules
    assert "'run'" in ran.err
    assert ran.err.count("\n") == 1


def test_command_of_another_package_runs(isorun: Callable[..., Any], plugins: None) -> None:
    assert isorun("greet", "Ada").out == "hello Ada\n"
    assert "'greet'" in isorun("gret").err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "No module named 'nowhere_to_be_found'"),
        ("gone", "no_such_package"),
        ("odd", "typer.Typer, got int"),
    ],
)
def test_broken_command_is_an_error_with_the_cause(
    isorun: Callable[..., Any], plugins: None, name: str, message: str
) -> None:
    ran = isorun(name)
    assert ran.code == 2
    assert message in ran.err
