"""Runtimes that isorun imports send nothing, and keep no identifier in the user's folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.errors import InvalidArgument
from isorun.system.telemetry import import_runtime

pytest.importorskip("onnxruntime")

USE = """
import os, sys
import isorun
isorun.Session({model!r}, {backend!r}, cache_dir={cache!r}).run(None, {{"x": [[1.0] * 3]}})
print(os.environ.get("ORT_DISABLE_TELEMETRY"), "openvino_telemetry" in sys.modules)
"""
MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y) { y = Neg (x) }"""


def files_at_home(backend: str, folder: Path, **variables: str) -> tuple[set[str], str]:
    """The files in the user's folder after a session on a backend; and what the process printed."""
    from onnx import parser, save

    home = folder / "home"
    home.mkdir()
    save(parser.parse_model(MODEL), folder / "model.onnx")
    script = USE.format(model=str(folder / "model.onnx"), backend=backend, cache=str(folder / "cache"))
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), **variables}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}, done.stdout


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_sessions_leave_no_identifier(backend: str, tmp_path: Path) -> None:
    """Nor the switch with which they are prevented from it."""
    assert files_at_home(backend, tmp_path) == (set(), "None False\n")


def test_the_switch_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISORUN_RUNTIME_TELEMETRY", "yes")
    with pytest.raises(InvalidArgument, match="must be 0 or 1, got 'yes'"):
        import_runtime("json")


@pytest.mark.parametrize(("chosen", "seen"), [({}, "1"), ({"ISORUN_RUNTIME_TELEMETRY": "1"}, None)])
def test_switch_is_set_for_the_import_alone(
    chosen: dict[str, str], seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_runtime.py").write_text("import os\nswitch = os.environ.get('ORT_DISABLE_TELEMETRY')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.delitem(sys.modules, "fake_runtime", raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert import_runtime("fake_runtime").switch == seen
    assert "ORT_DISABLE_TELEMETRY" not in os.environ


def test_choice_of_the_application_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_runtime.py").write_text("import os\nswitch = os.environ.get('ORT_DISABLE_TELEMETRY')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert import_runtime("other_runtime").switch == "0"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
