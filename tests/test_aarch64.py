"""Linux on Arm, under qemu: what backends compute there."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("ISORUN_AARCH64_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="ISORUN_AARCH64_PYTHON is not set; `tools/aarch64 FOLDER` makes one"),
]
HELPERS = Path(__file__).parent / "helpers"


def on_arm(folder: Path, backend: str, precision: str, cpu: str = "max") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), str(HELPERS / "on_aarch64.py"), str(folder), backend, precision],
        env={**os.environ, "PYTHONPATH": str(HELPERS), "QEMU_CPU": cpu, "XDG_CACHE_HOME": str(folder / "xdg")},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arm")


@pytest.mark.parametrize(
    ("backend", "precision", "limit"),
    [("ort-cpu", "fp32", 2e-5), ("ort-cpu", "bf16", 0.1), ("ort-cpu", "int8", 0.4), ("openvino", "fp32", 2e-5)],
)
def test_agrees_with_the_reference(backend: str, precision: str, limit: float, folder: Path) -> None:
    done = on_arm(folder, backend, precision)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["machine"] == "aarch64"
    assert result["precision"] == ("fp32+int8" if precision == "int8" else precision)
    assert result["removed"] == "from batches that have enough of it"
    assert result["error"] < limit
    assert result["error"] > (0 if precision == "fp32" else 1e-3)  # it does compute in this precision
    if backend == "ort-cpu":
        assert result["same_bits"]


def test_bf16_is_refused_by_a_processor_without_it(folder: Path) -> None:
    done = on_arm(folder, "ort-cpu", "bf16", "neoverse-n1")
    assert done.returncode == 1
    assert "does not support precision 'bf16'" in done.stderr
    assert "Arm processors with bf16 arithmetic only" in done.stderr
