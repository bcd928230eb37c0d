"""Libraries that use ONNX Runtime, with and without ``isorun.compat.install()``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("clients.py")
ROOT = Path(__file__).parents[3]
PYTHON = "ISORUN_CLIENTS_PYTHON"
"""An interpreter that has requirements.txt and isorun installed; without it, an environment is created."""

# The sessions that each client opens, and whether isorun fuses any of them.
CLIENTS = {
    "optimum_features": (1, True),
    "optimum_features_bound": (1, True),
    "optimum_classifier": (1, True),
    "optimum_decoder": (2, False),
    "sentence_transformers": (1, True),
    "cross_encoder": (1, True),
    "chromadb": (1, True),
    "fastembed": (1, True),
    "txtai": (1, True),
    "silero_vad": (1, False),
    "rapidocr": (3, True),
}


def run(*command: object, timeout: float = 600) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    if given := os.environ.get(PYTHON):
        return Path(given)
    folder = tmp_path_factory.mktemp("clients") / "environment"
    run(sys.executable, "-m", "venv", folder)
    made = folder / "bin" / "python"
    packages = ("-r", SCRIPT.with_name("requirements.txt"), "-e", f"{ROOT}[graph]")
    run(made, "-m", "pip", "install", "--quiet", *packages, timeout=3600)
    return made


@pytest.fixture(scope="module")
def models(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    run(python, SCRIPT, "prepare", folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_results_equal_those_of_onnxruntime(client, python, models, tmp_path):
    run(python, SCRIPT, client, models, tmp_path / "raw.npz")
    last = run(python, SCRIPT, client, models, tmp_path / "isorun.npz", "isorun").splitlines()[-1]
    opened = json.loads(last)
    assert (opened["sessions"], any(opened["fused"])) == CLIENTS[client]
    expected, results = np.load(tmp_path / "raw.npz"), np.load(tmp_path / "isorun.npz")
    assert set(results) == set(expected)
    for name, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(results[name], array, rtol=0, atol=2e-5 * np.abs(array).max(), err_msg=name)
        else:
            np.testing.assert_array_equal(results[name], array, err_msg=name)
