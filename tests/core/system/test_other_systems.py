"""isorun as it runs on macOS and Windows, simulated: what those systems lack is not there for isorun's modules."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import sentence_models

SIMULATION = Path(__file__).parents[2] / "helpers" / "other_systems"
systems = pytest.mark.parametrize("system", ["darwin", "win32"])

SESSION = """
import asyncio, sys
import numpy as np
import isorun
from isorun.system import portable

assert portable.HAS_OWNERS == portable.CAN_PASS_DESCRIPTORS == (sys.argv[1] == "darwin")
assert portable.cores() is None
model, texts = sys.argv[2:]
feeds = {"input_ids": np.array([[2, 5, 7]]), "attention_mask": np.ones((1, 3), np.int64)}
answers = []
for backend in ("ort-cpu", "openvino"):
    with isorun.Session(model, backend=backend) as session:
        names = [declared.name for declared in session.get_inputs()]
        known = {name: feeds.get(name, np.zeros((1, 3), np.int64)) for name in names}
        answers.append(session.run(None, known)[0])
        asyncio.run(session.arun(None, known))
np.testing.assert_allclose(*answers, atol=1e-5)
with isorun.Embedder(texts, backend="ort-cpu") as embedder:
    assert embedder.embed(["a man", "ein Mädchen"]).shape[0] == 2
try:
    isorun.Session(model, environment="other")
except isorun.IsorunError as error:
    print(error)
"""

COMPAT = """
import sys
import numpy as np
from isorun import compat

with compat.install(backend="auto"):
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    feeds = {declared.name: np.ones((1, 3), np.int64) for declared in session.get_inputs()}
    print(len(session.run(None, feeds)))
"""

SPEC = """
models: {tiny: {path: %s, shapes: [1x8]}}
backends: [ort-cpu, openvino]
rounds: 2
seconds: 0.05
"""

Simulate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Runs Python on another system, with a cache of its own."""

    def run(system: str, *arguments: object, codes: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        variables = {
            **os.environ,
            "PYTHONPATH": str(SIMULATION),
            "PYTHONWARNDEFAULTENCODING": "1",
            "ISORUN_TEST_SYSTEM": system,
            "ISORUN_CACHE_DIR": str(tmp_path / "cache"),
            "ISORUN_ENVIRONMENTS_DIR": str(tmp_path / "environments"),
        }
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode in codes, done.stderr
        return done

    return run


@systems
def test_sessions_and_embedders(system: str, simulate: Simulate, bert: Path, tmp_path: Path) -> None:
    texts = sentence_models.write_sentence_model(tmp_path / "texts")
    refused = simulate(system, "-c", SESSION, system, bert, texts).stdout
    assert ("Windows does not support isolated environments" if system == "win32" else "'other'") in refused


@pytest.mark.long
@systems
def test_compat_and_the_choice_of_a_backend(system: str, simulate: Simulate, bert: Path) -> None:
    assert int(simulate(system, "-c", COMPAT, bert).stdout) >= 1


@pytest.mark.long
@systems
def test_matrix(system: str, simulate: Simulate, bert: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC % bert)
    simulate(system, "-m", "isorun", "matrix", "run", "spec.yaml", "--out", "results")
    report = simulate(system, "-m", "isorun", "matrix", "report", "results", "--format", "html").stdout
    assert report.count("openvino") > 2


@pytest.mark.long
@systems
def test_doctor(system: str, simulate: Simulate) -> None:
    findings = json.loads(simulate(system, "-m", "isorun", "doctor", "--json", codes=(0, 1)).stdout)
    # The build of this system has no CoreML, which every build for macOS has.
    assert [finding for finding in findings if "coreml" not in finding["subject"]] == []
