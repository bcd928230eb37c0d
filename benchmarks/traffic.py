"""Throughput on requests of mixed lengths, in tokens per second: isorun, the bare runtimes, and other engines.

    python benchmarks/traffic.py [--preset bert-3l] [--batches 6] [--rounds 3] [--peers-python VENV/bin/python]

Lengths are lognormal (median 40 tokens, sigma 0.6, 6 to 128), in batches of 32 in order of arrival, each padded to its
longest (``--pad-to 128``: to 128); then as many batches of 32 x 48 without padding. Only real tokens count. Every
engine runs in a process of its own, interleaved over a number of rounds, each after warming up on as many other
batches; a ratio compares two engines in the same round, and the median over rounds is printed. ``isorun ... map`` gets
the same requests one by one through ``Session.map``, which batches them. ``--peers-python`` adds what a user would pick
instead of isorun (``peers.py`` says what each needs to be installed there); one that does not run is reported and left
out. int8 is compared with q8_0, and bf16 with f16.

``--outputs pooler_output`` serves a classifier's traffic: runtimes and isorun compute that output only; peers always
compute everything. Operations are still counted for the whole model.

isorun's processes also measure the rate of matrix products alone, on the same backend, with as many rows as a batch has
real tokens; ``share`` is the rate of a batch's operations (dense layers, and attention among a row's own tokens) over
that. Wall-clock figures mean little on a loaded machine: ``cpu`` is the ratio of processor seconds per token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS, MEDIAN, SIGMA, LEAST, MOST, EVEN = 32, 40, 0.6, 6, 128, 48
TORCH = "pytorch fp32"
PEERS = {
    TORCH: "fp32",
    "torch.compile fp32": "fp32",
    "zentorch fp32": "fp32",
    "sentence-transformers onnx fp32": "fp32",
    "sentence-transformers openvino fp32": "fp32",
    "llama.cpp f16": "bf16",
    "torchao int8": "int8",
    "llama.cpp q8_0": "int8",
}
"""What a user would pick instead, each with the precision of isorun's that it is compared with."""
RAW = {"ort-cpu": "onnxruntime", "openvino": "openvino"}
ENGINES = (
    *("onnxruntime fp32", "isorun ort-cpu fp32", "isorun ort-cpu fp32 map"),
    *("openvino fp32", "isorun openvino fp32", "isorun openvino fp32 map"),
    *("openvino bf16", "isorun openvino bf16", "isorun openvino bf16 map"),
    *("onnxruntime int8", "isorun ort-cpu int8", "isorun ort-cpu int8 map"),
    *("openvino int8", "isorun openvino int8", "isorun openvino int8 map"),
)
Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Any]


def stream(batches: int, *, even: bool, pad_to: int = 0, seed: int = 0) -> list[Feeds]:
    """Batches (32, S) of random tokens, padded on the right."""
    random = np.random.default_rng(seed)
    drawn_batches = []
    for _ in range(batches):
        drawn = np.clip(np.exp(random.normal(np.log(MEDIAN), SIGMA, ROWS)), LEAST, MOST).astype(int)
        lengths = np.full(ROWS, EVEN) if even else drawn
        drawn_batches.append(batch(lengths, max(pad_to, lengths.max()), random))
    return drawn_batches


def batch(lengths: np.ndarray, width: int, random: np.random.Generator) -> Feeds:
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = random.integers(0, 30522, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}


def warm_up(batches: int, *, even: bool, pad_to: int = 0) -> list[Feeds]:
    """What every engine serves before it is timed: a batch larger than any that will come, so that memory has grown as
    far as it will, and as many others as are timed, of the same kind."""
    others = stream(batches, even=even, pad_to=pad_to, seed=1)
    if even:
        return others
    return [batch(np.resize([MOST, MOST * 4 // 5], ROWS), MOST, np.random.default_rng(2)), *others]


def singles(batches: list[Feeds]) -> Iterator[Feeds]:
    """The rows of batches, without their padding."""
    for feeds in batches:
        for index, length in enumerate(feeds["attention_mask"].sum(axis=1)):
            yield {name: array[index, :length] for name, array in feeds.items()}


def tokens(batches: list[Feeds]) -> int:
    return sum(int(feeds["attention_mask"].sum()) for feeds in batches)


def operations(batches: list[Feeds], sizes: dict[str, Any]) -> float:
    """Additions and multiplications that real tokens need."""
    width, inner, layers = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    lengths = np.concatenate([feeds["attention_mask"].sum(axis=1) for feeds in batches]).astype(float)
    dense = 2 * (4 * width * width + 2 * width * inner) * lengths.sum()
    return float(layers * (dense + 4 * width * (lengths**2).sum()) + 2 * width * width * lengths.size)


def product_rate(backend: str, precision: str, rows: int, sizes: dict[str, Any]) -> float:
    """Operations a second of two dense layers' products, (rows, H) by (H, F) by (F, H)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import isorun

    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape, np.float32) / 30 for shape in ((width, inner), (inner, width))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    feeds = {"x": random.standard_normal((rows, width), np.float32)}
    with isorun.Session(model, backend, precision=precision) as session:
        taken = []
        for _ in range(12):
            start = time.perf_counter()
            session.run(None, feeds)
            taken.append(time.perf_counter() - start)
    return 4 * rows * width * inner / statistics.median(taken[2:])


def unfused(model: Path, backend: str, precision: str, samples: list[Feeds]) -> Path:
    """A model file in standard operators alone; in bf16, as OpenVINO computes by a hint, the one in fp32."""
    from isorun.compilation.compiler import Compiler
    from isorun.compilation.options import Options
    from isorun.models.source import open_model
    from isorun.plugin import registry
    from isorun.system.cache import Cache

    cache = Cache()
    compiler = Compiler(open_model(model, cache), Options(precision=precision), cache)
    table = None
    if precision == "int8":
        runner = registry.get(backend)
        table = compiler.calibrate(runner, compiler.config(runner), samples)
    converted = "fp32" if precision == "bf16" else precision
    return compiler.graphs.lower(("primitive",), precision=converted, quantized=table).path


def raw(engine: str, model: Path, export: bool, outputs: list[str] | None, samples: list[Feeds]) -> Run:
    """A runtime by its own interface, on the export, or on the graph in standard operators alone.

    In int8 that is isorun's quantized graph, with all its padding.
    """
    import bare_runtimes as bare

    runtime, precision = engine.split()
    path = model
    if precision == "int8" or not export:
        path = unfused(model, {peer: backend for backend, peer in RAW.items()}[runtime], precision, samples)
    if runtime == "onnxruntime":
        session = bare.open_onnxruntime(path)
        return lambda feeds: session.run(outputs, feeds)
    hint = {"fp32": "f32", "bf16": "bf16", "int8": "bf16"}[precision]
    return bare.openvino_run(bare.open_openvino(path, precision=hint, outputs=outputs))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(
    engine: str,
    preset: str,
    export: Path | None,
    outputs: list[str] | None,
    batches: list[Feeds],
    first: list[Feeds],
) -> dict[str, float]:
    """One engine on all batches, after those that warm it up."""
    import onnx

    from isorun.models import presets
    from isorun.system.cache import Cache

    model = export or presets.build(preset, 0, Cache())
    inputs = [value.name for value in onnx.load(model, load_external_data=False).graph.input]
    batches, first = ([{name: feeds[name] for name in inputs} for feeds in group] for group in (batches, first))
    result: dict[str, float] = {}
    samples = first[:3]  # what int8 is calibrated on
    if not engine.startswith("isorun"):
        run = raw(engine, model, export is not None, outputs, samples)
        for feeds in first:
            run(feeds)
        wall, cpu = timed(lambda: [run(feeds) for feeds in batches])
    else:
        import isorun

        _, backend, precision, *by_map = engine.split()
        calibration = samples if precision == "int8" else None
        with isorun.Session(model, backend, precision=precision, calibration=calibration, outputs=outputs) as session:
            if by_map:
                list(session.map(singles(first)))
                requests = list(singles(batches))
                wall, cpu = timed(lambda: [None for _ in session.map(requests)])
            else:
                for feeds in first:
                    session.run(None, feeds)
                wall, cpu = timed(lambda: [session.run(None, feeds) for feeds in batches])
        if precision != "int8":
            sizes = presets.sizes(preset)
            rate = product_rate(backend, precision, tokens(batches) // len(batches), sizes)
            result = {"product_rate": rate, "share": operations(batches, sizes) / wall / rate}
    count = tokens(batches)
    return {"tokens_per_second": count / wall, "tokens_per_cpu_second": count / cpu, **result}


def in_process(engine: str, arguments: argparse.Namespace, *, even: bool) -> dict[str, float]:
    if engine in PEERS:
        script = Path(__file__).with_name("peers.py")
        command = [str(arguments.peers_python), str(script), "--engine", engine]
    else:
        command = [sys.executable, __file__, "--engine", engine]
        command += ["--outputs", *arguments.outputs] if arguments.outputs else []
        command += ["--export", str(arguments.export)] if arguments.export else []
    command += ["--preset", arguments.preset, "--batches", str(arguments.batches)]
    command += ["--even"] if even else ["--pad-to", str(arguments.pad_to)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def ratio(mine: list[dict[str, float]], others: list[dict[str, float]], key: str) -> float:
    """The median over the rounds of two engines' ratio."""
    return statistics.median(own[key] / theirs[key] for own, theirs in zip(mine, others, strict=True))


def report(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Print a line for each engine; give its ratios."""
    ratios: dict[str, dict[str, float]] = {}
    for engine, rounds in results.items():
        line = f"{engine:<28}{statistics.median(figures['tokens_per_second'] for figures in rounds):9.0f} tokens/s"
        if engine.startswith("isorun"):
            _, backend, precision, *_ = engine.split()
            peer = f"{RAW[backend]} {precision}"
            ratios[engine] = {}
            if "share" in rounds[0]:
                ratios[engine]["share"] = statistics.median(figures["share"] for figures in rounds)
                line += f"  share {ratios[engine]['share']:.2f}"
            if peer in results:
                for name, key in (("wall", "tokens_per_second"), ("cpu", "tokens_per_cpu_second")):
                    ratios[engine][name] = ratio(rounds, results[peer], key)
                line += f"  {ratios[engine]['wall']:.2f} x {peer} (cpu {ratios[engine]['cpu']:.2f} x)"
            if TORCH in results:
                ratios[engine][TORCH] = ratio(rounds, results[TORCH], "tokens_per_second")
                line += f"  {ratios[engine][TORCH]:.1f} x {TORCH}"
            others = [candidate for candidate in results if PEERS.get(candidate) == precision]
            if others:
                compared = {candidate: ratio(rounds, results[candidate], "tokens_per_second") for candidate in others}
                best = min(compared, key=lambda candidate: compared[candidate])
                ratios[engine]["best peer"] = compared[best]
                line += f"  {compared[best]:.2f} x {best}"
        print(line, flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bert-3l")
    parser.add_argument(
        "--export", type=Path, help="a model as PyTorch exports it, for everybody, of the preset's sizes"
    )
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pad-to", type=int, default=0, metavar="LENGTH")
    parser.add_argument("--outputs", nargs="+", metavar="NAME", help="serve these outputs alone")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, metavar="ENGINE")
    parser.add_argument("--peers-python", type=Path, help="a Python that has the peers")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "out" / "traffic.json")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--even", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        batches = stream(arguments.batches, even=arguments.even, pad_to=arguments.pad_to)
        first = warm_up(arguments.batches, even=arguments.even, pad_to=arguments.pad_to)
        print(
            json.dumps(measure(arguments.engine, arguments.preset, arguments.export, arguments.outputs, batches, first))
        )
        return
    engines = arguments.engines + (arguments.peers if arguments.peers_python else [])
    reports: dict[str, Any] = {}
    for label, even in (("traffic", False), ("no padding", True)):
        results: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
        for _ in range(arguments.rounds):
            for engine in list(engines):
                try:
                    results[engine].append(in_process(engine, arguments, even=even))
                except subprocess.CalledProcessError:
                    if engine not in PEERS:
                        raise
                    print(f"{engine} does not run: the reason is above", flush=True)
                    engines.remove(engine)
                    results.pop(engine)
        batches = stream(arguments.batches, even=even, pad_to=0 if even else arguments.pad_to)
        whole = sum(feeds["attention_mask"].size for feeds in batches)
        print(
            f"\n{label}: {tokens(batches)} tokens in {len(batches)} batches, {tokens(batches) / whole:.0%} of them real"
        )
        reports[label] = {"rounds": results, "ratios": report(results)}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(reports, indent=2))


if __name__ == "__main__":
    main()
