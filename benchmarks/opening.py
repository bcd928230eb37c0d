"""Opening a model, compared with the bare runtime: time and peak memory.

    python benchmarks/opening.py [--preset bert-3l] [--rounds 7] [--json FILE]
    python benchmarks/opening.py --export FILE [--rounds 7] [--json FILE]

With a preset, the bare runtime loads the lowered file. With an export, it loads that, and isorun opens it with an empty
cache (``cold``) and from the cache.

Each opening runs in a process of its own that has imported the runtime before the clock starts, like a server that has
a session open already. Memory is the process's peak resident size at the end.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bare_runtimes as bare

from isorun import Session
from isorun.models import lowering, presets, source
from isorun.system.cache import Cache

OPEN = {"ort-cpu": bare.open_onnxruntime, "openvino": bare.open_openvino}
BACKENDS = {"ort-cpu": ("onnxruntime", "com.microsoft"), "openvino": ("openvino", "primitive")}
RAW, COLD, CACHED = "raw", "cold", "isorun"


def child(who: str, backend: str, model: Path, bare_file: Path) -> None:
    importlib.import_module(BACKENDS[backend][0])
    start = time.perf_counter()
    kept = OPEN[backend](bare_file) if who == RAW else Session(model, backend)
    taken = time.perf_counter() - start
    print(json.dumps({"ms": 1000 * taken, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    del kept


def rounds(
    backend: str, model: Path, bare_file: Path, kinds: Sequence[str], count: int, cache: Path | None
) -> dict[str, list[dict[str, float]]]:
    """What each kind of opening took, interleaved. ``cache`` replaces the user's; a cold opening empties it."""
    taken: dict[str, list[dict[str, float]]] = {who: [] for who in kinds}
    environment = os.environ if cache is None else {**os.environ, "ISORUN_CACHE_DIR": str(cache / "cache")}
    for _ in range(count):
        for who, trials in taken.items():
            if who == COLD and cache is not None:
                shutil.rmtree(cache / "cache", ignore_errors=True)
            command = [sys.executable, __file__, "--child", who, backend, str(model), str(bare_file)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
            trials.append(json.loads(done.stdout))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--preset", default="bert-3l", choices=presets.NAMES)
    chosen.add_argument("--export", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        who, backend, model, bare_file = arguments.child
        child(who, backend, Path(model), Path(bare_file))
        return

    export = arguments.export
    results: dict[str, Any] = {}
    for backend, (_, dialect) in BACKENDS.items():
        with tempfile.TemporaryDirectory() as folder:
            if export is not None:
                model = bare_file = export
                taken = rounds(backend, model, bare_file, (RAW, COLD, CACHED), arguments.rounds, Path(folder))
            else:
                cache = Cache()
                model = presets.build(arguments.preset, 0, cache)
                bare_file = lowering.ModelGraphs(source.open_model(model, cache), cache).lower((dialect,)).path
                taken = rounds(backend, model, bare_file, (RAW, CACHED), arguments.rounds, None)
        results[backend] = {
            who: {key: statistics.median(trial[key] for trial in trials) for key in ("ms", "peak_mib")}
            for who, trials in taken.items()
        }
        raw = results[backend][RAW]
        for who, middle in results[backend].items():
            span = [trial["ms"] for trial in taken[who]]
            print(
                f"{backend:<9} {who:<7} {middle['ms']:7.0f} ms ({min(span):.0f} to {max(span):.0f})"
                f" {middle['peak_mib']:7.0f} MiB"
                f"   {middle['ms'] / raw['ms']:.3f} x time, {middle['peak_mib'] / raw['peak_mib']:.3f} x memory"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
