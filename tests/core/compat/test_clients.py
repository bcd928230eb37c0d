"""Libraries that use ONNX Runtime, with and without ``isorun.compat.install()``."""

import json
from pathlib import Path

import numpy as np
import pytest

import programs

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
    "ddddocr": (2, False),
    "magika": (1, False),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    packages = ("-r", SCRIPT.with_name("requirements.txt"), "-e", f"{ROOT}[graph]")
    return programs.python_with(PYTHON, tmp_path_factory.mktemp("clients"), *packages)


@pytest.fixture(scope="module")
def models(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    programs.output(python, SCRIPT, "prepare", folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_results_equal_those_of_onnxruntime(client, python, models, tmp_path):
    programs.output(python, SCRIPT, client, models, tmp_path / "raw.npz")
    last = programs.output(python, SCRIPT, client, models, tmp_path / "isorun.npz", "isorun").splitlines()[-1]
    opened = json.loads(last)
    assert (opened["sessions"], any(opened["fused"])) == CLIENTS[client]
    expected, results = np.load(tmp_path / "raw.npz"), np.load(tmp_path / "isorun.npz")
    assert set(results) == set(expected)
    for name, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(results[name], array, rtol=0, atol=2e-5 * np.abs(array).max(), err_msg=name)
        else:
            np.testing.assert_array_equal(results[name], array, err_msg=name)
