"""`isorun serve` against `aembed` in one process and against other servers: many clients.

    python benchmarks/serve.py [--clients 64] [--seconds 10] [--rounds 3] [--plain-python PYTHON]
        [--infinity-python PYTHON]

Each engine is a process of its own and the engines take turns, so that a machine whose speed drifts does not make them
differ. Clients call in a loop with 1, 8 or 64 texts (shares 0.8, 0.15, 0.05) and wait for the answer; those of HTTP are
in a process of their own, with a connection each. Printed are calls and texts a second and the 99th percentile of the
time of a call, the median over rounds, and the processor time of the engine and its clients for each text, which other
programs on the machine disturb least; before it the time from the start of `isorun serve` to its first answer.
``--plain-python`` names a Python for a plain FastAPI with sentence-transformers (torch, sentence-transformers, fastapi,
uvicorn), and ``--infinity-python`` one with ``infinity-emb[torch,server]``; without them these engines are left out. On
a machine with few cores the clients' own work counts too: it takes the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

MODEL = "all-MiniLM-L6-v2"
SIZES, SHARES = (1, 8, 64), (0.8, 0.15, 0.05)
WORDS = ("man", "eating", "food", "girl", "carrying", "baby", "river", "bank", "the", "city", "people", "live", "work")

PLAIN = """
import sys
from fastapi import FastAPI
from sentence_transformers import SentenceTransformer
import uvicorn
model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()

@app.post("/v1/embeddings")
def embed(body: dict):
    vectors = model.encode(body["input"])
    return {"data": [{"embedding": vector.tolist()} for vector in vectors]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""

INFINITY = ["-c", "from infinity_emb.cli import cli; cli()", "v2", "--url-prefix", "/v1", "--device", "cpu"]

Call = Callable[[int, list[str]], Awaitable[None]]


def calls(seed: int) -> Any:
    """The texts of one call after the other; lengths are lognormal with a median of 20 words."""
    rng = random.Random(seed)
    while True:
        size = rng.choices(SIZES, SHARES)[0]
        yield [" ".join(rng.choices(WORDS, k=min(150, 1 + int(rng.lognormvariate(3, 0.7))))) for _ in range(size)]


async def load(call: Call, clients: int, seconds: float, pids: Sequence[int]) -> dict[str, float]:
    """Call from many clients for some time; ``pids`` are the processes whose processor time counts."""
    times: list[float] = []
    texts = 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal texts
        for batch in calls(number):
            start = time.perf_counter()
            if start > end:
                return
            await call(number, batch)
            times.append(time.perf_counter() - start)
            texts += len(batch)

    start, cpu = time.perf_counter(), processor_time(pids)
    await asyncio.gather(*map(client, range(clients)))
    taken, cpu = time.perf_counter() - start, processor_time(pids) - cpu
    p50, p99 = (statistics.quantiles(times, n=100)[at] for at in (49, 98))
    figures = {"calls/s": len(times) / taken, "texts/s": texts / taken, "p50 ms": p50 * 1000, "p99 ms": p99 * 1000}
    return {**figures, "CPU ms/text": cpu / texts * 1000}


def processor_time(pids: Sequence[int]) -> float:
    """Processor time of processes in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def in_process(clients: int) -> None:
    """For each number of seconds on standard input, call `aembed` and print the figures."""
    import isorun

    with isorun.Embedder(MODEL, max_queue=100_000) as embedder:
        embedder.warmup()
        print("ready", flush=True)

        async def call(_: int, texts: list[str]) -> None:
            await embedder.aembed(texts)

        for line in sys.stdin:
            print(json.dumps(asyncio.run(load(call, clients, float(line), [os.getpid()]))), flush=True)


def over_http(clients: int, port: int, pid: int) -> None:
    """The same over HTTP: a connection for each client, written by hand so that clients take little of the cores."""
    print("ready", flush=True)

    async def session(seconds: float) -> dict[str, float]:
        streams = [await asyncio.open_connection("127.0.0.1", port, limit=2**24) for _ in range(clients)]

        async def call(number: int, texts: list[str]) -> None:
            reader, writer = streams[number]
            body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
            head = "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = re.search(rb"content-length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))

        figures = await load(call, clients, seconds, [os.getpid(), pid])
        for _, writer in streams:
            writer.close()
        return figures

    for line in sys.stdin:
        print(json.dumps(asyncio.run(session(float(line)))), flush=True)


def wait_for(port: int, start: float) -> float:
    """The seconds until a server answers a call."""
    body = json.dumps({"input": ["a"]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/embeddings", body, {"content-type": "application/json"}
    )
    while time.perf_counter() < start + 120:
        try:
            urllib.request.urlopen(request, timeout=60).read()
        except OSError:
            time.sleep(0.02)
        else:
            return time.perf_counter() - start
    raise SystemExit("The server did not start within 120 s")


def child(kind: str, clients: int, port: int = 0, pid: int = 0) -> subprocess.Popen[str]:
    """This program as a source of calls."""
    command = [sys.executable, __file__, "--child", kind, "--clients", str(clients), "--port", str(port)]
    command += ["--pid", str(pid)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def peers(args: argparse.Namespace) -> dict[str, list[str]]:
    """The commands of other servers, by name; the port is appended."""
    if not (args.plain_python or args.infinity_python):
        return {}
    from isorun.models import hub
    from isorun.system.cache import Cache

    folder = _with_folders(hub.checkpoint_folder(MODEL, Cache()))
    commands = {}
    if args.plain_python:
        commands["plain"] = [args.plain_python, "-c", PLAIN, folder]
    if args.infinity_python:
        commands["infinity"] = [args.infinity_python, *INFINITY, "--model-id", folder, "--port"]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8181)
    parser.add_argument("--plain-python")
    parser.add_argument("--infinity-python")
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "process":
        return in_process(args.clients)
    if args.child == "http":
        return over_http(args.clients, args.port, args.pid)
    serve = [sys.executable, "-m", "isorun", "serve", MODEL, "--max-queue", "100000", "--timeout", "3600", "--port"]
    # The first start measures and compiles, what the second one finds in the cache.
    for name in ("first start", "cold start, cached"):
        start = time.perf_counter()
        server = subprocess.Popen([*serve, str(args.port)], stderr=subprocess.DEVNULL)
        print(f"{name}: {wait_for(args.port, start):.2f} s to the first answer", flush=True)
        if name == "first start":
            server.terminate()
            server.wait()
    servers, engines = [server], {"aembed": child("process", args.clients)}
    engines["isorun serve"] = child("http", args.clients, args.port, server.pid)
    for port, (name, command) in enumerate(peers(args).items(), args.port + 1):
        servers.append(subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for(port, time.perf_counter())
        engines[name] = child("http", args.clients, port, servers[-1].pid)
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for _ in range(args.rounds):
        for name, process in engines.items():
            assert process.stdin is not None
            assert process.stdout is not None
            print(args.seconds, file=process.stdin, flush=True)
            figures[name].append(json.loads(process.stdout.readline()))
            print(f"{name}: {figures[name][-1]}", file=sys.stderr, flush=True)
    for process in engines.values():
        process.communicate()
    for started in servers:
        started.terminate()
        started.wait()
    print(f"{args.clients} clients, {args.rounds} x {args.seconds:g} s, load {os.getloadavg()[0]:.1f} at the end")
    for name, rounds in figures.items():
        row = {key: statistics.median(figure[key] for figure in rounds) for key in rounds[0]}
        print(f"{name:14}" + "".join(f"{value:10.1f} {key}" for key, value in row.items()), flush=True)
    return None


def _with_folders(checkpoint: Path) -> str:
    """A copy of the checkpoint by links, with the folders that sentence-transformers expects."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    for path in checkpoint.iterdir():
        target = folder / re.sub(r"^(\d+_\w+)\.", r"\1/", path.name)
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(path)
    return str(folder)


if __name__ == "__main__":
    main()
