"""isorun and the bare runtimes, each on the best graph that its own tools make: fp32 latency.

    python benchmarks/raw.py [--preset bert-3l] [--batch 1] [--sequence 128] [--rounds 5] [--json FILE]

Every measurement runs in a process of its own, with nothing beside it; engines are interleaved over a number of rounds.
A bare runtime gets the graph without fused operators and optimizes it itself. With ``--export``, a graph of the same
sizes as PyTorch exports it, bare runtimes get that one, and ONNX Runtime also the output of its
``onnxruntime.transformers.optimizer``; the faster one counts. The ratio is isorun's median latency over the bare
runtime's in the same round; the median over rounds is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bare
import numpy as np
from bare import Run

from isorun import Session
from isorun.models import lowering, presets
from isorun.models import source as model
from isorun.system.cache import Cache

OPTIMIZER = "onnxruntime optimizer"
PEERS = {"isorun ort-cpu": ("onnxruntime", OPTIMIZER), "isorun openvino": ("openvino",)}


def onnxruntime_on(path: Path) -> Run:
    session = bare.open_onnxruntime(path)
    return lambda feeds: session.run(None, feeds)


def optimized(path: Path, config: tuple[int, int], folder: Path) -> Path:
    """What ONNX Runtime's tool for transformers makes of a graph."""
    from onnxruntime.transformers import optimizer

    heads, width = config
    output = folder / "optimized.onnx"
    made = optimizer.optimize_model(str(path), "bert", num_heads=heads, hidden_size=width, opt_level=0)
    made.save_model_to_file(str(output))
    print(f"onnxruntime optimizer fused {made.get_fused_operator_statistics()}", file=sys.stderr)
    return output


def isorun_on(path: Path, backend: str) -> Run:
    session = Session(path, backend)
    return lambda feeds: session.run(None, feeds)


def engine(name: str, preset: str, plain: Path) -> Run:
    """One engine, ready to run."""
    sizes = presets.sizes(preset)
    match name:
        case "onnxruntime":
            return onnxruntime_on(plain)
        case _ if name == OPTIMIZER:
            with tempfile.TemporaryDirectory() as folder:
                shape = (sizes["num_attention_heads"], sizes["hidden_size"])
                return onnxruntime_on(optimized(plain, shape, Path(folder)))
        case "openvino":
            return bare.openvino_run(bare.open_openvino(plain))
        case _:
            return isorun_on(presets.build(preset, 0, Cache()), name.removeprefix("isorun "))


def measure(run: Run, batch: int, sequence: int, seconds: float) -> dict[str, float]:
    """Latencies in milliseconds over some seconds, after a quarter of that to warm up."""
    random = np.random.default_rng(0)
    feeds = {
        "input_ids": random.integers(0, 30522, (batch, sequence)),
        "attention_mask": np.ones((batch, sequence), np.int64),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }
    taken = []
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + 1.25 * seconds:
        run(feeds)
        if now > start + 0.25 * seconds:
            taken.append(1000 * (time.perf_counter() - now))
    return {"median": statistics.median(taken), "min": min(taken), "runs": len(taken)}


def in_process(name: str, arguments: argparse.Namespace, plain: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--engine", name, "--plain", str(plain), "--preset", arguments.preset]
    command += ["--batch", str(arguments.batch), "--sequence", str(arguments.sequence)]
    command += ["--seconds", str(arguments.seconds)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bert-3l", choices=presets.NAMES)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--export", type=Path, help="the same model as PyTorch exports it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        run = engine(arguments.engine, arguments.preset, arguments.plain)
        print(json.dumps(measure(run, arguments.batch, arguments.sequence, arguments.seconds)))
        return

    cache = Cache()
    source = model.open_model(presets.build(arguments.preset, 0, cache), cache)
    plain = arguments.export or lowering.lower(source, ("primitive",), cache).path
    found = {mine: [peer for peer in peers if peer != OPTIMIZER or arguments.export] for mine, peers in PEERS.items()}
    names = [name for mine, others in found.items() for name in (mine, *others)]
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        for name in names:
            taken[name].append(in_process(name, arguments, plain)["median"])
        print(f"round {number + 1}: " + ", ".join(f"{name} {times[-1]:.2f} ms" for name, times in taken.items()))
    ratios = {
        mine: statistics.median(
            times / min(others) for times, *others in zip(taken[mine], *(taken[other] for other in peers), strict=True)
        )
        for mine, peers in found.items()
    }
    for mine, peers in found.items():
        print(f"{mine}: {ratios[mine]:.3f} x the raw runtime ({' or '.join(peers)})")
    if arguments.json:
        arguments.json.write_text(json.dumps({"median_ms": taken, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
