"""Opening a cached model, compared with the bare runtime loading the lowered file: time and peak memory.

    python benchmarks/opening.py [--preset bert-3l] [--rounds 7] [--json FILE]

Each opening runs in a process of its own that has imported the runtime before the clock starts, like a server that has
a session open already. Memory is the process's peak resident size at the end.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bare

from isorun import Session
from isorun.models import lowering, presets, source
from isorun.system.cache import Cache

OPEN = {"ort-cpu": bare.open_onnxruntime, "openvino": bare.open_openvino}
BACKENDS = {"ort-cpu": ("onnxruntime", "com.microsoft"), "openvino": ("openvino", "primitive")}


def child(who: str, backend: str, given: Path, lowered: Path) -> None:
    importlib.import_module(BACKENDS[backend][0])
    start = time.perf_counter()
    kept = Session(given, backend) if who == "isorun" else OPEN[backend](lowered)
    taken = time.perf_counter() - start
    print(json.dumps({"ms": 1000 * taken, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    del kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bert-3l", choices=presets.NAMES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        who, backend, given, lowered = arguments.child
        child(who, backend, Path(given), Path(lowered))
        return

    cache = Cache()
    given = presets.build(arguments.preset, 0, cache)
    results: dict[str, Any] = {}
    for backend, (_, dialect) in BACKENDS.items():
        lowered = lowering.lower(source.open_model(given, cache), (dialect,), cache).path
        rounds: dict[str, list[dict[str, float]]] = {"raw": [], "isorun": []}
        for _ in range(arguments.rounds):
            for who, taken in rounds.items():
                command = [sys.executable, __file__, "--child", who, backend, str(given), str(lowered)]
                taken.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        middle = {
            who: {key: statistics.median(each[key] for each in taken) for key in ("ms", "peak_mib")}
            for who, taken in rounds.items()
        }
        ratio = {key: middle["isorun"][key] / middle["raw"][key] for key in ("ms", "peak_mib")}
        results[backend] = {**middle, "ratio": ratio}
        print(
            f"{backend:<10} raw {middle['raw']['ms']:7.1f} ms {middle['raw']['peak_mib']:7.0f} MiB   "
            f"isorun {middle['isorun']['ms']:7.1f} ms {middle['isorun']['peak_mib']:7.0f} MiB   "
            f"ratio {ratio['ms']:.3f} time, {ratio['peak_mib']:.3f} memory"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
