"""The application on Ray Serve."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.errors import InvalidArgument
from isorun_serve.deployment import scaling

SCRIPT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import ray, requests
from ray import serve
from isorun_serve.deployment import deployment
from isorun_serve.opening import Named
from isorun_serve.settings import Settings
import isorun
import numpy as np

folder = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
serve.start(http_options={"host": "127.0.0.1", "port": 8123})
options = {"backend": "ort-cpu"}
application = deployment([Named("embedder", folder, None)], options, Settings(measure=False), replicas="2", cpus=1)
serve.run(application, name="isorun", route_prefix="/")
url = "http://127.0.0.1:8123"
with isorun.Embedder(folder, backend="ort-cpu") as embedder:
    expected = embedder.embed(["a b", "c"])
answer = requests.post(url + "/v1/embeddings", json={"model": "embedder", "input": ["a b", "c"]}, timeout=60)
np.testing.assert_allclose([item["embedding"] for item in answer.json()["data"]], expected, atol=1e-6)
for body in ({"a": 1}, None, []):
    answer = requests.post(url + "/v1/embeddings", json=body, timeout=60)
    assert (answer.status_code, list(answer.json())) == (400, ["error"]), answer.text
assert requests.get(url + "/ready", timeout=60).json() == {"ready": True}
serve.shutdown()
print("done")
"""


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ("3", {"num_replicas": 3}),
        ("0:4", {"autoscaling_config": {"min_replicas": 0, "max_replicas": 4, "target_ongoing_requests": 16}}),
    ],
)
def test_replicas(replicas: str, expected: dict[str, object]) -> None:
    assert scaling(replicas) == expected


@pytest.mark.parametrize("replicas", ["", "0", "a", "2:1", "1:", "-1", "0:0"])
def test_rejects_other_numbers_of_replicas(replicas: str) -> None:
    with pytest.raises(InvalidArgument, match="expected N or MIN:MAX"):
        scaling(replicas)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'isorun[ray]'")
def test_answers_as_one_server(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, str(path), str(folders["embedder"])],
        cwd=tmp_path,
        env={**os.environ, "RAY_TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.stdout.endswith("done\n"), ran.stderr[-4000:]
