"""The application on Ray Serve."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from isorun.errors import InvalidArgument, IsorunError
from isorun_serve.app import create_app
from isorun_serve.deployment import run, scaling
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings

SCRIPT = """
import re, sys, time
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
body, headers = {"model": "embedder", "input": ["a b", "c"]}, {"X-Request-Id": "abc"}
answer = requests.post(url + "/v1/embeddings", json=body, headers=headers, timeout=60)
assert answer.headers["x-request-id"] == "abc"
np.testing.assert_allclose([item["embedding"] for item in answer.json()["data"]], expected, atol=1e-6)
for body in ({"a": 1}, None, []):
    answer = requests.post(url + "/v1/embeddings", json=body, timeout=60)
    assert (answer.status_code, list(answer.json())) == (400, ["error"]), answer.text
assert requests.get(url + "/ready", timeout=60).json() == {"ready": True}
pages = [requests.get(url + "/metrics", timeout=60).text for _ in range(20)]
assert len({replica for page in pages for replica in re.findall(r'replica="(\\w+)",model=', page)}) == 2, pages[-1]
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


def test_metrics_name_the_replica_and_ray_sends_the_ids_of_requests(models: dict[str, Any]) -> None:
    app = create_app(Models([Served.of("bert", models["bert"])]), Settings(warmup=False), replica="a")
    client = TestClient(app)
    assert "x-request-id" not in client.get("/v1/models", headers={"x-request-id": "abc"}).headers
    samples = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert samples
    assert all('{replica="a"' in sample for sample in samples), samples


def test_errors_of_ray_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: Any) -> None:
        raise RuntimeError("ray::Proxy.ready()\n  File proxy.py\nRuntimeError: Failed to bind to address 'a:80'.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=SimpleNamespace(start=start)))
    with pytest.raises(
        IsorunError, match=r"^Ray Serve cannot serve on a, port 80: .*to bind to address 'a:80'\. Ray's"
    ):
        run(None, "a", 80)
    with pytest.raises(InvalidArgument, match="--port cannot be 0 with --ray"):
        run(None, "a", 0)


NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'isorun[ray]'")


@pytest.mark.long
@NEEDS_RAY
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


@pytest.mark.long
@NEEDS_RAY
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the replicas in /proc")
def test_a_killed_replica_takes_only_its_requests_with_it_and_sigterm_takes_none(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "isorun", "serve", str(folders["embedder"]), "--backend", "ort-cpu"]
    command += ["--ray", "--replicas", "2", "--port", str(port), "--no-measure"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "RAY_TMPDIR": "/tmp"}, stderr=file)
    try:
        _wait(lambda: "Application 'isorun' is ready" in log.read_text(encoding="utf-8"), log)
        answers: list[tuple[float, float, int]] = []
        end = time.monotonic() + 10

        def call() -> None:
            while time.monotonic() < end:
                started = time.monotonic()
                status = _embed(port)
                answers.append((started, time.monotonic(), status))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(3)
        killed = time.monotonic()
        os.kill(_replicas(tmp_path)[0], signal.SIGKILL)
        for thread in threads:
            thread.join()
        failed = [answer for answer in answers if answer[2] != 200]
        # A request that Ray routes before it notices is the replica's too.
        assert all(status == 500 and started < killed + 1 for started, _, status in failed), failed
        assert len(failed) <= 8
        assert sum(status == 200 and started > killed for started, _, status in answers) > 8
        _wait(lambda: len(_replicas(tmp_path)) == 2, log)
        with ThreadPoolExecutor(8) as pool:
            last = [pool.submit(_embed, port, 512) for _ in range(8)]
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert {future.result() for future in last} == {200}
        assert process.wait(90) == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _embed(port: int, count: int = 64) -> int:
    body = json.dumps({"inputs": ["a b c"] * count}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/embed", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _replicas(folder: Path) -> list[int]:
    """The replicas of a cluster that was started in a folder: Ray names processes after what they run."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name, place = path.read_text(encoding="utf-8"), path.with_name("cwd").readlink()
        except OSError:  # it has ended
            continue
        if name.startswith("ray::ServeReplica:isorun") and place == folder.resolve():
            processes.append(int(path.parent.name))
    return processes


def _wait(condition: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, log.read_text(encoding="utf-8")[-4000:]
        time.sleep(0.2)
