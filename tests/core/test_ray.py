"""Ray Data and Ray Serve: the examples of the documentation, and actors and replicas that fail."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'isorun[ray]'"),
]
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
START = """
import ray
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
"""

LOST_ACTOR = """
import os, pathlib
import isorun
import numpy as np
from isorun.ray import Embed

class Dies(Embed):
    def __call__(self, batch):
        if "text 77" in batch["text"]:
            try:
                pathlib.Path("died").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os._exit(1)
        return super().__call__(batch)

texts = [f"text {number}" for number in range(200)]
dataset = ray.data.from_items([{"text": text} for text in texts], override_num_blocks=8)
rows = dataset.map_batches(
    Dies,
    fn_constructor_args=["all-MiniLM-L6-v2"],
    batch_size=32,
    num_cpus=1,
    compute=ray.data.ActorPoolStrategy(size=2),
).take_all()
assert pathlib.Path("died").exists()
found = {row["text"]: row["embedding"] for row in rows}
assert len(rows) == len(found) == 200
with isorun.Embedder("all-MiniLM-L6-v2") as embedder:
    np.testing.assert_allclose(np.stack([found[text] for text in texts]), embedder.embed(texts), atol=1e-5)
"""

COLUMNS = """
import numpy as np, onnx.parser, onnx, pyarrow
from isorun.errors import InvalidFeeds
from isorun.ray import Embed, Infer

onnx.save(onnx.parser.parse_model('''
    <ir_version: 8, opset_import: ["" : 17]>
    products (float[n, s] x) => (float[n, 1, s, s] y) {
        columns = Constant<value_ints: ints = [1, 3]>()
        rows = Constant<value_ints: ints = [1, 2]>()
        a = Unsqueeze(x, columns)
        b = Unsqueeze(x, rows)
        y = Mul(a, b)
    }'''), "products.onnx")
@ray.remote(num_cpus=1)
def check():
    infer = Infer("products.onnx", backend="ort-cpu")
    column = np.empty(3, object)
    column[:] = [np.ones(2, np.float32), np.ones(3, np.float32), np.full(2, 2, np.float32)]
    outputs = infer({"x": column})["y"]
    assert [array.shape for array in outputs] == [(1, 2, 2), (1, 3, 3), (1, 2, 2)] and (outputs[2] == 4).all()
    assert len(infer({"x": column[:0]})["y"]) == 0
    embed = Embed("all-MiniLM-L6-v2")
    texts = {"text": np.array(["a"]), "embedding": column[:1]}
    refused = (
        (infer, {"x": column, "y": column}, "already"),
        (embed, texts, "already"),
        (embed, pyarrow.table({"text": ["a"]}), "Use batch_format='numpy'"),
    )
    for call, batch, reason in refused:
        try:
            call(batch)
        except InvalidFeeds as error:
            assert reason in str(error)
        else:
            raise AssertionError(f"accepted, expected an error: {reason}")

ray.get(check.remote())
"""

SERVED = """
import time
import onnx, onnx.parser
import requests
from concurrent.futures import ThreadPoolExecutor
from ray import serve
from isorun.ray import EmbedderServer, SessionServer

server = SessionServer.options(ray_actor_options={"num_cpus": 1}).bind("bert.onnx")
handle = serve.run(server, name="bert")
feeds = {"input_ids": [[2, 7, 3]], "attention_mask": [[1, 1, 1]], "token_type_ids": [[0, 0, 0]]}
assert handle.run.remote(feeds).result()["last_hidden_state"].shape[:2] == (1, 3)
url = "http://127.0.0.1:8000/"
assert len(requests.post(url, json=feeds, timeout=30).json()["last_hidden_state"][0]) == 3
wrong = requests.post(url, json={"input_idz": [[1]]}, timeout=30)
assert wrong.status_code == 400 and "input_idz" in wrong.json()["error"], wrong.text
wrong = requests.post(url, json={**feeds, "input_ids": [[2.5, 7, 3]]}, timeout=30)
assert wrong.status_code == 400 and "float64" in wrong.json()["error"], wrong.text
serve.delete("bert")

text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (seq(float[]) z) { z = SequenceConstruct(x, x) }'
onnx.save(onnx.parser.parse_model(text), "sequence.onnx")
serve.run(SessionServer.options(ray_actor_options={"num_cpus": 1}).bind("sequence.onnx"), name="sequence")
assert requests.post(url, json={"x": [1, 2]}, timeout=30).json() == {"z": [[1, 2], [1, 2]]}
serve.delete("sequence")

options = {"num_cpus": 1}
server = EmbedderServer.options(ray_actor_options=options, max_ongoing_requests=1000, health_check_period_s=1)
handle = serve.run(server.bind("all-MiniLM-L6-v2", max_queue=1), name="embedder")
texts = ["bread " * 100] * 64
with ThreadPoolExecutor(16) as pool:
    codes = list(pool.map(lambda _: requests.post(url, json=texts, timeout=60).status_code, range(16)))
assert 429 in codes and set(codes) <= {200, 429}, codes

handle = serve.run(server.bind("all-MiniLM-L6-v2"), name="embedder")
pending = [handle.embed.remote(texts) for _ in range(4)]
assert handle.embed.remote(["a"]).result().shape == (1, 384)
serve.delete("embedder")  # drains
assert [one.result().shape for one in pending] == [(64, 384)] * 4

class Breaks(EmbedderServer.func_or_class):
    async def embed(self, texts):
        if texts == ["break"]:
            self.embedder.close()
        return await super().embed(texts)

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.5)

def answers():
    try:
        return handle.embed.remote(["a"]).result(timeout_s=10).shape == (1, 384)
    except Exception:
        return False

server = serve.deployment(Breaks, health_check_period_s=1).options(ray_actor_options=options)
handle = serve.run(server.bind("all-MiniLM-L6-v2"), name="breaks")
assert answers()
(node,) = ray.nodes()
page = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
until(lambda: "ray_isorun_requests{" in requests.get(page, timeout=10).text)
try:
    handle.embed.remote(["break"]).result()
except Exception as error:
    assert "closed" in str(error), error
assert not answers()
until(answers)  # the replica was replaced
"""


@pytest.mark.parametrize("script", ["page", "a lost actor", "columns", "served"])
def test_ray(script: str, bert: Path, minilm: Path, tmp_path: Path) -> None:
    shutil.copy(bert, tmp_path / "bert.onnx")
    shutil.copytree(minilm, tmp_path / "all-MiniLM-L6-v2", symlinks=False)
    text = {
        "page": "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8"))),
        "a lost actor": LOST_ACTOR,
        "columns": COLUMNS,
        "served": SERVED,
    }[script]
    path = tmp_path / "script.py"
    path.write_text(START + text)
    variables = {**os.environ, "RAY_TMPDIR": "/tmp", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}  # sockets: short paths
    ran = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
