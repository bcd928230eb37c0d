"""The stages of ``benchmarks/gpu.py``, each run in a process of its own: ``python -m gpu_stages NAME FILE [--quick]``.

Not run on hardware yet. Figures are fractions of what the same card reaches in the stage ``limits``: a large copy, and
a large product in fp16, both by PyTorch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import isorun
from isorun import parity, presets, registry
from isorun.cache import Cache
from isorun.errors import IsorunError
from isorun.samples import MASKS

BACKENDS = ("ort-cuda", "tensorrt", "ort-tensorrt")
SHAPES = ((1, 128), (8, 128), (32, 128), (1, 384))
WANTED_MS = {("bert-base", 1, 128): 0.5, ("bert-large", 1, 128): 1.1}  # fp16, on an H200: asked of the card alone
WANTED_SHARE = 0.45  # of the measured product, at 32 x 128
SEED = 7


class Stage:
    """What a stage found: lines for people, figures for JSON, and whether all of it is as it should be."""

    def __init__(self, file: Path, *, quick: bool) -> None:
        self.file, self.quick = file, quick
        self.passed = True
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def expect(self, holds: bool, line: str) -> None:
        self.passed &= bool(holds)
        self.say(f"{'ok    ' if holds else 'FAILED'} {line}")

    def write(self) -> None:
        self.file.write_text(
            json.dumps({"passed": self.passed, "lines": self.lines, "figures": self.figures}, indent=1)
        )

    def limits(self) -> dict[str, float]:
        """What the stage ``limits`` found; empty where it did not run."""
        file = self.file.with_name("limits.json")
        found: dict[str, float] = json.loads(file.read_text())["figures"] if file.is_file() else {}
        return found


def limits(stage: Stage) -> None:
    """The rates that the card reaches: the best of ten, timed by events, after three that are not."""
    import torch

    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.float16) for _ in range(2))
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    product = best_ms(lambda: torch.matmul(a, b))
    copy = best_ms(lambda: target.copy_(source))
    stage.figures = {
        "fp16_product_tflops": 2 * side**3 / product / 1e9,
        "copy_gb_per_s": 2 * source.numel() / copy / 1e6,
    }
    stage.say(f"fp16 product {side} x {side} x {side}: {stage.figures['fp16_product_tflops']:.0f} TFLOP/s")
    stage.say(f"copy of 1 GiB, read and written: {stage.figures['copy_gb_per_s']:.0f} GB/s")


def best_ms(work: Callable[[], Any]) -> float:
    import torch

    for _ in range(3):
        work()
    found = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return min(found)


def parities(stage: Stage) -> None:
    """Every backend and precision against fp32 on the CPU, under the five kinds of mask."""
    model = build("bert-3l")
    cases = [(kind, feeds(4, 64, MASKS[kind])) for kind in MASKS]
    with isorun.Session(model, backend="ort-cpu", padding="keep") as session:
        expected = [session.run(None, given) for _, given in cases]
        names = [spec.name for spec in session.get_outputs()]
    for backend, precision in available(stage):
        with opened(stage, model, backend, precision, ["1..4x64"]) as session:
            if session is None:
                continue
            tolerance = parity.DEFAULT_TOLERANCES[precision]
            for (kind, given), wanted in zip(cases, expected, strict=True):
                for name, found, right in zip(names, session.run(None, given), wanted, strict=True):
                    real = given["attention_mask"] != 0
                    keep = real if found.ndim == 3 else real.any(axis=1)
                    off = np.abs(found[keep].astype(np.float64) - right[keep])
                    scale = float(np.sqrt(np.mean(np.square(right[keep], dtype=np.float64))))
                    rms = float(np.sqrt(np.mean(np.square(off)))) / scale
                    finite = bool(np.isfinite(found).all())
                    stage.expect(
                        finite and rms <= tolerance.rms,
                        f"{backend} {precision} {kind} {name}: rms {rms:.1e} of at most {tolerance.rms:.0e}",
                    )
            stage.figures[f"{backend} {precision}"] = session.provenance.as_dict()


def conformance(stage: Stage) -> None:
    """The suite that is shipped, on every GPU backend that is here."""
    from isorun.testing.suite import runner

    for backend in BACKENDS:
        if not registry.get(backend).availability().ok:
            stage.say(f"{backend}: not available")
            continue
        report = runner.run(backend)
        stage.figures[backend] = report.as_dict()
        stage.expect(report.passed, f"{backend}: the conformance suite")


def times(stage: Stage) -> None:
    """Medians of the time around a run, by the host's clock, and as a share of the measured product rate.

    ``host``: feeds and outputs in host memory, with CUDA graphs. ``resident``: feeds and outputs that stay on the
    device, without graphs. What the host needs to start a run counts in both, so they are above the time of the card
    alone, which is not measured here: a limit that they meet, it meets.
    """
    models = ("bert-3l",) if stage.quick else ("bert-3l", "bert-base", "bert-large")
    rate = stage.limits().get("fp16_product_tflops")
    for name in models:
        model = build(name)
        for backend, precision in available(stage):
            shapes = [f"{batch}x{sequence}" for batch, sequence in SHAPES]
            with opened(stage, model, backend, precision, shapes, attention="lengths") as session:
                if session is None:
                    continue
                for batch, sequence in SHAPES:
                    one_time(stage, session, (name, backend, precision), (batch, sequence), rate)


def one_time(
    stage: Stage, session: isorun.Session, what: tuple[str, str, str], shape: tuple[int, int], rate: float | None
) -> None:
    name, backend, precision = what
    batch, sequence = shape
    given = feeds(batch, sequence, MASKS["none"])
    runs = 20 if stage.quick else 200
    wall = statistics.median(wall_ms(session, given, runs))
    device = resident_ms(session, given, runs)
    operations = encoder_operations(name, batch, sequence)
    key = f"{name} {backend} {precision} {batch}x{sequence}"
    best = wall if device is None else min(wall, device)
    share = None if rate is None else operations / best / 1e9 / rate
    stage.figures[key] = {"host_ms": wall, "resident_ms": device, "operations": operations, "share": share}
    shown = "" if share is None else f", {share:.0%} of the fp16 product"
    line = f"{key}: host {wall:.3f} ms, resident {'-' if device is None else f'{device:.3f} ms'}{shown}"
    limit = WANTED_MS.get((name, batch, sequence))
    if backend == "ort-cuda" and precision == "fp16" and limit is not None and not stage.quick:
        stage.expect(best <= limit, f"{line}; at most {limit} ms is asked")
    elif precision == "fp16" and shape == (32, 128) and share is not None and name != "bert-3l":
        stage.expect(share >= WANTED_SHARE, f"{line}; {WANTED_SHARE:.0%} is asked")
    else:
        stage.say(f"       {line}")


def wall_ms(session: isorun.Session, given: dict[str, np.ndarray], runs: int) -> list[float]:
    found = []
    for index in range(runs + 20):
        start = time.perf_counter_ns()
        session.run(None, given)
        if index >= 20:
            found.append((time.perf_counter_ns() - start) / 1e6)
    return found


def resident_ms(session: isorun.Session, given: dict[str, np.ndarray], runs: int) -> float | None:
    """The median of runs on arrays that stay on the device; ``None`` without PyTorch to hold them."""
    try:
        import torch
    except ImportError:
        return None
    there = {name: torch.as_tensor(array, device="cuda") for name, array in given.items()}
    torch.cuda.synchronize()
    found = []
    for index in range(runs + 20):
        start = time.perf_counter_ns()
        session.run(None, there, device_outputs=True)  # returns when the work is done
        if index >= 20:
            found.append((time.perf_counter_ns() - start) / 1e6)
    return statistics.median(found)


def arrays(stage: Stage) -> None:
    """Feeds from CuPy and PyTorch, and outputs that they take without a copy."""
    model = build("bert-3l")
    given = feeds(2, 64, MASKS["right"])
    for backend, precision in available(stage):
        with opened(stage, model, backend, precision, ["2x64"]) as session:
            if session is None:
                continue
            wanted = session.run(None, given)
            for library, there, back in libraries():
                found = session.run(None, {name: there(array) for name, array in given.items()}, device_outputs=True)
                off = max(float(np.abs(back(one) - other).max()) for one, other in zip(found, wanted, strict=True))
                stage.expect(off < 0.05, f"{backend} {precision} with {library}: off by {off:.1e} from host memory")


def libraries() -> Iterator[tuple[str, Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]]:
    """Libraries of device arrays that are here: to the device, and back."""
    try:
        import cupy

        yield "cupy", cupy.asarray, lambda value: cupy.asnumpy(cupy.asarray(value))
    except ImportError:
        print("cupy is not installed")
    try:
        import torch

        yield (
            "torch",
            lambda array: torch.as_tensor(array, device="cuda"),
            lambda value: torch.as_tensor(value, device="cuda").cpu().numpy(),
        )
    except ImportError:
        print("torch is not installed")


def threads(stage: Stage) -> None:
    """Four threads, a thousand runs each of mixed shapes; the device's memory afterwards as after the first of them."""
    import torch

    model = build("bert-3l")
    cases = [feeds(batch, sequence, MASKS["right"]) for batch in (1, 3, 8) for sequence in (17, 64, 128)]
    runs = 50 if stage.quick else 1000
    for backend, precision in available(stage):
        with opened(stage, model, backend, precision, ["1..8x1..128"]) as session:
            if session is None:
                continue
            errors: list[str] = []

            def work(count: int, session: isorun.Session = session, errors: list[str] = errors) -> None:
                for index in range(count):
                    try:
                        session.run(None, cases[index % len(cases)])
                    except IsorunError as error:
                        errors.append(str(error))

            in_threads(lambda: work(len(cases) * 4))
            before = torch.cuda.mem_get_info()[0]
            in_threads(lambda: work(runs))
            grown = (before - torch.cuda.mem_get_info()[0]) / 2**20
            stage.expect(not errors, f"{backend} {precision}: {len(errors)} errors in 4 x {runs} runs {errors[:1]}")
            stage.expect(grown < 16, f"{backend} {precision}: {grown:.0f} MiB more on the device after them")


def in_threads(work: Callable[[], None]) -> None:
    workers = [threading.Thread(target=work) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def matrix(stage: Stage) -> None:
    """``matrix/gpu.yaml``; its own folder has the report."""
    import subprocess

    spec = Path(__file__).resolve().parents[1] / "matrix" / "gpu.yaml"
    folder = stage.file.with_name("matrix")
    command = [sys.executable, "-m", "isorun", "matrix", "run", str(spec), "--output", str(folder)]
    stage.expect(subprocess.run(command, check=False).returncode == 0, f"isorun matrix run: {folder}")


def build(name: str) -> Path:
    return presets.build(name, SEED, Cache())


def feeds(batch: int, sequence: int, mask: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([SEED, batch, sequence])
    return {
        "input_ids": rng.integers(0, 30000, (batch, sequence)),
        "attention_mask": mask(batch, sequence, rng),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }


def available(stage: Stage) -> Iterator[tuple[str, str]]:
    for backend in BACKENDS:
        here = registry.get(backend)
        if not here.availability().ok:
            stage.say(f"       {backend}: {here.availability().reason}")
            continue
        for precision in here.capabilities.precisions:
            yield backend, precision


class opened:
    """A session, or ``None`` with the reason on record where it cannot be had: fp32 on ort-tensorrt, say."""

    def __init__(
        self, stage: Stage, model: Path, backend: str, precision: str, shapes: list[str], attention: str = "auto"
    ) -> None:
        self.stage, self.model, self.backend, self.precision = stage, model, backend, precision
        options: dict[str, Any] = {"shapes": shapes} if "shapes" in registry.get(backend).capabilities.options else {}
        if backend == "ort-tensorrt" and len(shapes) > 1:
            options = {}
        if "cuda_graphs" in registry.get(backend).capabilities.options:
            options["cuda_graphs"] = True if backend == "tensorrt" else 16
        if "attention" in registry.get(backend).capabilities.options:
            options["attention"] = attention  # a mask on the device is not looked at
        self.options = options
        self.session: isorun.Session | None = None

    def __enter__(self) -> isorun.Session | None:
        try:
            self.session = isorun.Session(
                self.model, backend=self.backend, precision=self.precision, padding="keep", options=self.options
            )
        except IsorunError as error:
            refused = self.backend == "ort-tensorrt" and self.precision == "fp32"
            self.stage.expect(refused, f"{self.backend} {self.precision} cannot be opened: {error}")
        return self.session

    def __exit__(self, *_: object) -> None:
        if self.session is not None:
            self.session.close()


def encoder_operations(name: str, batch: int, sequence: int) -> float:
    """Multiplications and additions of the matrix products in one run, counted as two each."""
    sizes = presets.sizes(name)
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    tokens = batch * sequence
    dense = 2 * tokens * (4 * width * width + 2 * width * inner)
    scores = 4 * tokens * sequence * width
    return float(sizes["num_hidden_layers"] * (dense + scores))


STAGES: dict[str, Callable[[Stage], None]] = {
    "limits": limits,
    "parity": parities,
    "conformance": conformance,
    "times": times,
    "arrays": arrays,
    "threads": threads,
    "matrix": matrix,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    stage = Stage(arguments.file, quick=arguments.quick)
    try:
        STAGES[arguments.stage](stage)
    except (ImportError, IsorunError) as error:
        stage.expect(False, f"{type(error).__name__}: {error}")
    stage.write()
    return 0 if stage.passed else 1


if __name__ == "__main__":
    sys.exit(main())
