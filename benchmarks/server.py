"""Whether the rates that the matrix finds for ``server`` can be relied on: again, and with another generator.

    python benchmarks/server.py [--backends ort-cpu openvino] [--sequence 32] [--p99-ms 100] [--searches 3]

Each search is one of the matrix, with bert-3l and one row: LoadGen, a session and the cell's queue, in a process of its
own. One more search has another generator, which draws its own arrivals and has its own queue and clock. The searches
of a backend take turns, measurement by measurement, so that a machine whose speed drifts does not make them differ.
Printed are the rate and the interval of each, the largest rate over the smallest, and the other generator's over the
median. A search has 24 measurements, each of ``--seconds`` and 300 requests at least.
"""

from __future__ import annotations

import argparse
import json
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

PRESET, SETS, REQUESTS, REPEATS = "bert-3l", 16, 300, 12


def serve(generator: str, backend: str, sequence: int, p99_ms: float, seconds: float) -> None:
    """Print the time of a request alone; then, for each rate on standard input, measure and print the figures."""
    import isorun
    from isorun.models import presets
    from isorun.system.cache import Cache
    from isorun.system.disturbance import Attempts
    from isorun_matrix.measurement.load.figures import Trial
    from isorun_matrix.measurement.load.generator import Generator
    from isorun_matrix.measurement.load.targets import SessionTarget
    from isorun_matrix.spec.load_scenario import Load

    rng = np.random.default_rng()
    session = isorun.Session(presets.build(PRESET, 0, Cache()), backend)
    ids = rng.integers(1, 1000, (SETS, 1, sequence))
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feeds = [{spec.name: arrays[spec.name][index] for spec in session.get_inputs()} for index in range(SETS)]
    taken = []
    for request in feeds * 8:
        start = time.perf_counter()
        session.run(None, request)
        taken.append(time.perf_counter() - start)
    alone = float(np.median(taken[-SETS:]))

    def by_itself(rate: float) -> Trial:
        arrivals = np.cumsum(rng.exponential(1 / rate, max(REQUESTS, round(rate * seconds))))
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

    with tempfile.TemporaryDirectory() as folder:
        scenario = Load(scenario="server", p99_ms=p99_ms, seconds=seconds, time_limit=1e7)
        target = SessionTarget(session, feeds, scenario.workers)
        loadgen = Generator(scenario, target, SETS, secrets.randbits(31), Path(folder))
        measure: Callable[[float], Trial] = by_itself
        if generator == "loadgen":
            measure = lambda rate: loadgen.trial(rate, alone)  # noqa: E731
        attempts = Attempts(REPEATS)
        print(alone, flush=True)
        for line in sys.stdin:
            rate = float(line)
            *_, (trial, _) = attempts(lambda rate=rate: measure(rate))
            print(json.dumps(asdict(trial)), flush=True)
        target.close()


def searches(backend: str, args: argparse.Namespace) -> list[float]:
    """The rates that searches find which take turns; prints them."""
    from isorun_matrix.measurement.load.figures import Trial
    from isorun_matrix.measurement.load.search import search

    def measured_rate(index: int) -> float:
        generator = generators[index]
        command = [sys.executable, __file__, "--serve", generator, "--backends", backend]
        command += ["--sequence", str(args.sequence), "--p99-ms", str(args.p99_ms), "--seconds", str(args.seconds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def trial(rate: float) -> Trial:
                turns[index].acquire()
                try:
                    print(rate, file=process.stdin, flush=True)
                    return Trial(**json.loads(process.stdout.readline()))
                finally:
                    turns[(index + 1) % len(turns)].release()

            alone = float(process.stdout.readline())
            ready.wait()
            capacity = search(trial, 0.5 / alone, args.p99_ms, index)
            process.stdin.close()
        assert capacity is not None, f"no rate is within {args.p99_ms:g} ms"
        low, high = capacity.between
        print(f"{backend} {generator:8s} {capacity.rate:7.1f} requests/s ({low:.1f} to {high:.1f})", flush=True)
        return capacity.rate

    generators = ["loadgen"] * args.searches + ["own"]
    turns = [threading.Semaphore(int(index == 0)) for index in range(len(generators))]
    ready = threading.Barrier(len(generators))
    with ThreadPoolExecutor(len(generators)) as pool:
        return list(pool.map(measured_rate, range(len(generators))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ort-cpu", "openvino"], metavar="BACKEND")
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument("--p99-ms", type=float, default=100.0)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, *args.backends, args.sequence, args.p99_ms, args.seconds)
        return
    for backend in args.backends:
        *rates, other_rate = searches(backend, args)
        spread, beside = max(rates) / min(rates), other_rate / float(np.median(rates))
        print(f"{backend}: largest over smallest {spread:.3f}; the other generator over the median {beside:.3f}")


if __name__ == "__main__":
    main()
