"""The README's first command finds a wheel of every package, on each system and Python that docs/systems.md names."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UV = shutil.which("uv")
PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_35", "aarch64-apple-darwin", "x86_64-pc-windows-msvc")


@pytest.mark.long
@pytest.mark.skipif(UV is None, reason="uv, which resolves for other systems, is not installed")
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_pinned_package_has_a_wheel(python: str, system: str) -> None:
    options = ["--python-version", python, "--python-platform", system, "--only-binary", ":all:", "--quiet"]
    packages = ["pyproject.toml", "--extra", "cpu", "--extra", "serve", "-c", "constraints.txt"]
    command = [str(UV), "pip", "compile", *packages, *options]
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}  # of ONNX Runtime's wheels
    resolved = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert resolved.returncode == 0, resolved.stderr
    assert "onnx==" in resolved.stdout
