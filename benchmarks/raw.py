"""isorun and the bare runtimes, each on the best graph that its own tools make: fp32 latency and peak memory.

    python benchmarks/raw.py [--preset bert-3l] [--batch 1] [--sequence 128] [--rounds 5] [--json FILE]

Every measurement runs in a process of its own, with nothing beside it; engines are interleaved over a number of rounds.
A bare runtime gets the graph without fused operators and optimizes it itself. With ``--export``, everybody gets that
file, as PyTorch wrote it, and ONNX Runtime also the output of its ``onnxruntime.transformers.optimizer`` where that
knows the architecture (BERT); the faster one counts. The ratio is isorun's median latency over the bare runtime's in
the same round; the median over rounds is printed. Memory is the process's peak resident size, compared with that of the
faster peer.
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

import bare_runtimes as bare
import numpy as np
import onnx
from bare_runtimes import Run

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
    optimized_model = optimizer.optimize_model(str(path), "bert", num_heads=heads, hidden_size=width, opt_level=0)
    optimized_model.save_model_to_file(str(output))
    print(f"onnxruntime optimizer fused {optimized_model.get_fused_operator_statistics()}", file=sys.stderr)
    return output


def isorun_on(path: Path, backend: str) -> Run:
    session = Session(path, backend)
    return lambda feeds: session.run(None, feeds)


def engine(name: str, preset: str, plain: Path, export: Path | None) -> Run:
    """One engine, ready to run."""
    match name:
        case "onnxruntime":
            return onnxruntime_on(plain)
        case _ if name == OPTIMIZER:
            sizes = presets.sizes(preset)
            with tempfile.TemporaryDirectory() as folder:
                shape = (sizes["num_attention_heads"], sizes["hidden_size"])
                return onnxruntime_on(optimized(plain, shape, Path(folder)))
        case "openvino":
            return bare.openvino_run(bare.open_openvino(plain))
        case _:
            return isorun_on(export or presets.build(preset, 0, Cache()), name.removeprefix("isorun "))


def measure(run: Run, inputs: list[str], batch: int, sequence: int, seconds: float) -> dict[str, float]:
    """Latencies in milliseconds over some seconds, after at least two calls and a quarter of that to warm up."""
    random = np.random.default_rng(0)
    values = {
        "input_ids": random.integers(0, 30522, (batch, sequence)),
        "attention_mask": np.ones((batch, sequence), np.int64),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }
    feeds = {name: values[name] for name in inputs}
    taken: list[float] = []
    calls, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + 1.25 * seconds or not taken:
        run(feeds)
        calls += 1
        if now > start + 0.25 * seconds and calls > 2:
            taken.append(1000 * (time.perf_counter() - now))
    return {"median": statistics.median(taken), "min": min(taken), "runs": len(taken), "peak_mib": peak_mib()}


def peak_mib() -> float:
    """The peak resident size of this process. ``ru_maxrss`` would include that of the parent before the fork."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def in_process(name: str, arguments: argparse.Namespace, plain: Path, inputs: list[str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--engine", name, "--plain", str(plain), "--preset", arguments.preset]
    command += ["--inputs", *inputs]
    command += ["--batch", str(arguments.batch), "--sequence", str(arguments.sequence)]
    command += ["--seconds", str(arguments.seconds)]
    command += ["--export", str(arguments.export)] if arguments.export else []
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
    parser.add_argument("--export", type=Path, help="a model as PyTorch exports it, for everybody")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--inputs", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        run = engine(arguments.engine, arguments.preset, arguments.plain, arguments.export)
        print(json.dumps(measure(run, arguments.inputs, arguments.batch, arguments.sequence, arguments.seconds)))
        return

    plain = arguments.export
    if plain is None:
        cache = Cache()
        plain = (
            lowering.ModelGraphs(model.open_model(presets.build(arguments.preset, 0, cache), cache), cache)
            .lower(("primitive",))
            .path
        )
    inputs = [value.name for value in onnx.load(plain, load_external_data=False).graph.input]
    known = arguments.export and arguments.preset.startswith("bert-")
    peers_of = {mine: [peer for peer in peers if peer != OPTIMIZER or known] for mine, peers in PEERS.items()}
    names = [name for mine, others in peers_of.items() for name in (mine, *others)]
    short = argparse.Namespace(**{**vars(arguments), "sequence": 16, "seconds": 0.0})
    for mine in PEERS:  # lowering the model is not part of a session's memory
        in_process(mine, short, plain, inputs)
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(arguments.rounds):
        rounds.append({name: in_process(name, arguments, plain, inputs) for name in names})
        line = (f"{name} {cost['median']:.2f} ms {cost['peak_mib']:.0f} MiB" for name, cost in rounds[-1].items())
        print(f"round {number + 1}: " + ", ".join(line), flush=True)
    ratios = {}
    for mine, peers in peers_of.items():
        pairs = [(row[mine], min((row[peer] for peer in peers), key=lambda peer: peer["median"])) for row in rounds]
        ratios[mine] = {
            key: statistics.median(own[key] / theirs[key] for own, theirs in pairs) for key in ("median", "peak_mib")
        }
        latency, memory = ratios[mine].values()
        print(f"{mine}: {latency:.3f} x the latency, {memory:.2f} x the memory of {' or '.join(peers)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
