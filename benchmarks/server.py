"""Whether the rates that the matrix reports for ``server`` can be relied on: repeated, and from another generator.

    python benchmarks/server.py [--backends ort-cpu openvino] [--p99-ms 100] [--runs 3]

Each run is ``isorun matrix run`` with bert-3l, 1 x 32. The other generator draws its own arrivals, keeps its own queue
and clock, and runs in a process of its own; both use the same search. The runs of a backend follow each other, so that
a machine whose speed drifts changes less between them. Printed are the rates of each backend, the time of a request
alone in the same run, and the largest rate over the smallest. A search takes four minutes.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

PRESET, SEQUENCE, SETS, SECONDS, REQUESTS = "bert-3l", 32, 16, 10.0, 300
Figures = tuple[float, tuple[float, float], float]
"""A rate in requests a second, its interval, and the milliseconds of a request alone."""


def by_matrix(backend: str, p99_ms: float, out: Path) -> Figures:
    """The rate that the matrix finds."""
    spec = {
        "models": {"bert": {"preset": PRESET}},
        "shapes": [f"1x{SEQUENCE}"],
        "masks": ["none"],
        "rounds": 1,
        "control": False,
        "backends": [backend],
        "load": [{"scenario": "server", "p99_ms": p99_ms, "seconds": SECONDS}],
    }
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(spec))  # JSON is YAML
    isorun = [sys.executable, "-m", "isorun", "matrix"]
    subprocess.run([*isorun, "run", str(path), "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    ran = subprocess.run([*isorun, "report", str(out), "--format", "json"], check=True, capture_output=True)
    (cell,) = json.loads(ran.stdout)["cells"]
    found = cell["loads"][0]["result"]
    return found["requests_per_s"], found["between"], cell["latency_ms"]["p50"]


def by_itself(backend: str, p99_ms: float) -> Figures:
    """The rate of a backend from a generator that shares only the search with the matrix."""
    import isorun
    from isorun.models import presets
    from isorun.system.cache import Cache
    from isorun_matrix.measurement.load.figures import Trial
    from isorun_matrix.measurement.load.search import search

    rng = np.random.default_rng()
    session = isorun.Session(presets.build(PRESET, 0, Cache()), backend)
    ids = rng.integers(1, 1000, (SETS, 1, SEQUENCE))
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feeds = [{each.name: given[each.name][index] for each in session.get_inputs()} for index in range(SETS)]
    taken = []
    for each in feeds * 8:
        start = time.perf_counter()
        session.run(None, each)
        taken.append(time.perf_counter() - start)

    def trial(rate: float) -> Trial:
        arrivals = np.cumsum(rng.exponential(1 / rate, max(REQUESTS, round(rate * SECONDS))))
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        latencies = np.empty(len(arrivals))
        start = time.perf_counter() + 0.2

        def answer() -> None:
            for _ in arrivals:
                index = waiting.get()
                session.run(None, feeds[index % SETS])
                latencies[index] = time.perf_counter() - start - arrivals[index]

        worker = threading.Thread(target=answer)
        worker.start()
        for index, arrival in enumerate(arrivals):
            time.sleep(max(0.0, start + arrival - time.perf_counter()))
            waiting.put(index)
        worker.join()
        p50, p90, p99 = np.percentile(latencies, [50, 90, 99]) * 1e3
        return Trial(rate, len(arrivals), len(arrivals) / float(arrivals[-1]), p50, p90, p99)

    alone = float(np.median(taken[-SETS:]))
    found = search(trial, 0.5 / alone, p99_ms, 0)
    return (0.0, (0.0, 0.0), alone * 1e3) if found is None else (found.rate, found.between, alone * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ort-cpu", "openvino"], metavar="BACKEND")
    parser.add_argument("--p99-ms", type=float, default=100.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.own:
        print(json.dumps(by_itself(given.own, given.p99_ms)))
        return

    def printed(what: str, backend: str, figures: Figures) -> float:
        rate, (low, high), alone = figures
        between = f"({low:.1f} to {high:.1f})"
        print(f"{what:9s} {backend:10s} {rate:7.1f} requests/s {between:16s} alone {alone:.2f} ms", flush=True)
        return rate

    with tempfile.TemporaryDirectory() as folder:
        for backend in given.backends:
            found = [
                printed(f"run {run + 1}", backend, by_matrix(backend, given.p99_ms, Path(folder) / f"{backend}-{run}"))
                for run in range(given.runs)
            ]
            again = [sys.executable, __file__, "--own", backend, "--p99-ms", str(given.p99_ms)]
            ran = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True)
            other = printed("by itself", backend, json.loads(ran.stdout.splitlines()[-1]))
            spread, beside = max(found) / min(found), other / float(np.median(found))
            print(
                f"{backend}: largest over smallest of the runs {spread:.3f}; by itself over their median {beside:.3f}"
            )


if __name__ == "__main__":
    main()
