"""A server's load: 64 concurrent callers, requests of lognormal lengths, isorun next to simple arrangements.

    python benchmarks/load.py [--model minilm|PRESET|FOLDER] [--slots 2] [--seconds 20] [--engines ...]

Each caller sends its next request when the last one is answered (a closed loop). Every engine runs in a process of its
own, which stays open and idle while the others run: engines take turns in slots of 20 seconds, so that a change of the
machine's speed hits all of them. Printed are requests a second and the latency's percentiles, medians over the slots,
and ratios to the best of the others at the same precision.

``onnxruntime`` is one session with all threads, two requests at once; ``onnxruntime workers`` one session with one
thread, called from as many threads as there are cores; ``openvino`` the THROUGHPUT hint with an ``AsyncInferQueue``;
all three on the graph in standard operators, without padding since requests are not batched. isorun's engines call
``Session.arun`` after ``Session.warmup``.

``first`` is the first request after the warm-up over the median of the same request later, in rounds of requests of 16
lengths with nothing beside them, and the largest such ratio of those 16. A pause precedes every round, not only the
first: after 10 ms without a request, the next one takes up to 1.8 times as long, however often it ran before.

``memory`` is the growth of the process's resident size from the first quarter of the slots to the last, so ten minutes
of load on one engine are

    python benchmarks/load.py --engines "isorun ort-cpu fp32" --slots 60 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import bare_runtimes
import numpy as np
import traffic

from isorun.system.process_usage import resident_mib

CALLERS = 64
LENGTHS, AGAIN = 16, 10  # of requests whose first run is compared with later ones
PAUSE = 0.1  # seconds before each of their rounds
PEERS = ("onnxruntime fp32", "onnxruntime workers fp32", "openvino fp32")
OWN = ("isorun ort-cpu fp32", "isorun openvino fp32", "isorun openvino auto")
Feeds = dict[str, np.ndarray]
Call = Callable[[Feeds], Awaitable[Any]]


def requests(count: int, seed: int) -> list[Feeds]:
    """Single requests, (1, S)."""
    batches = traffic.stream(-(-count // traffic.ROWS), even=False, seed=seed)
    return [{name: array[None] for name, array in feeds.items()} for feeds in traffic.singles(batches)][:count]


def path_of(model: str) -> Path:
    from isorun.models import checkpoint, presets
    from isorun.models.hub import checkpoint_folder
    from isorun.system.cache import Cache

    cache = Cache()
    if model == "minilm" or Path(model).is_dir():
        folder = checkpoint_folder("all-MiniLM-L6-v2", cache) if model == "minilm" else Path(model)
        return checkpoint.build_cached(folder, cache)
    return presets.build(model, 0, cache)


def plain(model: Path) -> Path:
    """The graph in standard operators."""
    from isorun.models.lowering import ModelGraphs
    from isorun.models.source import open_model
    from isorun.system.cache import Cache

    cache = Cache()
    return ModelGraphs(open_model(model, cache), cache).lower(("primitive",)).path


def own(engine: str, model: Path, output: str) -> Call:
    import isorun

    _, backend, precision = engine.split()
    session = isorun.Session(model, backend, precision=precision, outputs=[output])
    plan = session.warmup(requests(96, seed=1))
    print(f"{engine}: {session.provenance.precision}, {plan}", file=sys.stderr)
    return lambda feeds: session.arun(None, feeds)


def threads(run: Callable[[Feeds], Any], workers: int) -> Call:
    pool = ThreadPoolExecutor(workers)
    return lambda feeds: asyncio.get_running_loop().run_in_executor(pool, run, feeds)


def peer(engine: str, model: Path, output: str) -> Call:
    from isorun.system.threads import usable_cores

    path = plain(model)
    if engine.startswith("onnxruntime"):
        workers = "workers" in engine
        session = bare_runtimes.open_onnxruntime(path, 1 if workers else None)
        return threads(lambda feeds: session.run([output], feeds), usable_cores() if workers else 2)
    import openvino

    core = openvino.Core()
    properties = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    graph = core.read_model(path)
    results = [port for port in graph.get_results() if output in port.input_value(0).names]
    compiled = core.compile_model(openvino.Model(results, graph.get_parameters(), "part"), "CPU", properties)
    queue = openvino.AsyncInferQueue(compiled)

    def done(request: Any, future: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]) -> None:
        result = request.get_output_tensor(0).data.copy()
        loop, waiting = future
        loop.call_soon_threadsafe(waiting.set_result, result)

    queue.set_callback(done)
    waiting: SimpleQueue[tuple[Feeds, Any]] = SimpleQueue()

    def start() -> None:  # start_async blocks while all requests are busy
        while True:
            queue.start_async(*waiting.get())

    threading.Thread(target=start, daemon=True).start()

    async def call(feeds: Feeds) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting.put((feeds, (loop, future)))
        return await future

    return call


async def slot(call: Call, stream: list[Feeds], seconds: float) -> dict[str, float]:
    """A closed loop of 64 callers."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        at = number
        while (start := time.perf_counter()) < end:
            await call(stream[at % len(stream)])
            latencies.append(time.perf_counter() - start)
            at += CALLERS

    begin, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    taken = time.perf_counter() - begin
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    share = (time.process_time() - cpu) * 1e3 / len(latencies)
    return {
        "requests_per_second": len(latencies) / taken,
        "p50": p50,
        "p99": p99,
        "cpu_ms": share,
        "resident_mib": resident_mib(),
    }


async def opening(call: Call, stream: list[Feeds]) -> dict[str, float]:
    """The first request, and the slowest first one of its length, over the same ones in later rounds."""
    taken = np.empty((AGAIN + 1, LENGTHS))
    for times in taken:
        await asyncio.sleep(PAUSE)
        for index, feeds in enumerate(stream[:LENGTHS]):
            start = time.perf_counter()
            await call(feeds)
            times[index] = time.perf_counter() - start
    ratios = taken[0] / np.median(taken[1:], axis=0)
    return {"first": float(ratios[0]), "slowest_first": float(ratios.max())}


def serve(engine: str, model: str) -> None:
    """Open an engine; for each line on standard input, run a slot of that many seconds and print the figures."""
    path = path_of(model)
    output = "last_hidden_state" if model == "minilm" or Path(model).is_dir() else "pooler_output"
    stream = requests(1024, seed=0)  # before the warm-up, after which the processor's caches are full of the model
    call = own(engine, path, output) if engine in OWN else peer(engine, path, output)
    first = asyncio.run(opening(call, stream))
    asyncio.run(slot(call, stream, 1.0))  # warms up
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(slot(call, stream, float(line)))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="minilm, a preset such as bert-3l, or a checkpoint's folder")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--engines", nargs="+", default=[*PEERS, *OWN], choices=[*PEERS, *OWN], metavar="ENGINE")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "out" / "load.json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.model)
    processes, first = {}, {}
    for engine in arguments.engines:  # one after the other: opening measures
        command = [sys.executable, __file__, "--serve", engine, "--model", arguments.model]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        first[engine] = json.loads(process.stdout.readline() or "null")
        assert first[engine], f"{engine} did not start"
        processes[engine] = process
    results: dict[str, list[dict[str, float]]] = {engine: [] for engine in processes}
    for turn in range(arguments.slots):
        for engine in list(processes) if turn % 2 == 0 else list(processes)[::-1]:
            process = processes[engine]
            process.stdin.write(f"{arguments.seconds}\n")
            process.stdin.flush()
            results[engine].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait(60)
    report(results, first)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"first": first, "slots": results}, indent=2))
    return None


def report(results: dict[str, list[dict[str, float]]], first: dict[str, dict[str, float]]) -> None:
    """Print a line for each engine."""
    medians = {
        engine: {name: statistics.median(slot[name] for slot in slots) for name in slots[0]}
        for engine, slots in results.items()
    }
    peers = [medians[engine] for engine in PEERS if engine in medians]
    for engine, figures in medians.items():
        line = f"{engine:<26}{figures['requests_per_second']:8.1f} requests/s"
        line += "".join(f"  {name} {figures[name]:7.1f}" for name in ("p50", "p99", "cpu_ms"))
        if engine in OWN and peers:
            best = max(figures["requests_per_second"] for figures in peers)
            tail = min(figures["p99"] for figures in peers)
            line += f"  {figures['requests_per_second'] / best:.2f} x requests/s, {figures['p99'] / tail:.2f} x p99"
        if engine in OWN:
            line += "  first {first:.2f} x (slowest of {0} {slowest_first:.2f} x)".format(LENGTHS, **first[engine])
        sizes = [slot["resident_mib"] for slot in results[engine]]
        if quarter := len(sizes) // 4:
            growth = statistics.median(sizes[-quarter:]) - statistics.median(sizes[:quarter])
            line += f"  memory {sizes[-1]:.0f} MiB ({growth:+.1f})"
        print(line)


if __name__ == "__main__":
    main()
