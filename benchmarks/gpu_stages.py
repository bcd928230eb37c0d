"""The stages of ``benchmarks/gpu.py``, each run in a separate process: ``python -m gpu_stages NAME FILE [--quick]``.

What a stage finds is in its file line by line, so that one that dies or hangs has said what it had. A backend that
fails in a stage is a line of it, and the others go on.

Figures are fractions of what the same card reaches in the stage ``limits``: a large copy, and a large product in fp16,
both by PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import isorun
from isorun import parity
from isorun.errors import IsorunError
from isorun.models import presets
from isorun.parity.samples import MASKS, lognormal_lengths, right_padded
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun_matrix.measurement import gpu

BACKENDS = ("ort-cuda", "tensorrt", "ort-tensorrt")
SHAPES = ((1, 128), (8, 128), (32, 128), (1, 384))
WANTED_MS = {("bert-base", 1, 128): 0.5, ("bert-large", 1, 128): 1.1}  # fp16, on an H200: targets for device time
WANTED_SHARE = 0.45  # of the measured product, at 32 x 128
SMOKE_OFF = 0.05  # for outputs of about 1: above rounding errors, below wrong results
SECONDS = 1.5  # at most, for one figure
FORMS: dict[str, dict[str, Any]] = {
    "lengths": {"attention": "lengths"},
    "bias": {"attention": "bias"},
    "bias by CUTLASS": {"attention": "bias", "provider_options": {"sdpa_kernel": 2}},
    "plain": {"attention": "plain"},
}
"""Mask forms of ``ort-cuda`` for right padding, the fastest first: if one fails, the next is timed."""
POOLED = ["pooler_output"]  # what an embedder fetches; all token states take longer to copy than to compute
PACKED = "ort-cuda"  # the backend with two ways to remove padding
PACKED_SHAPES = ((1, 128), (8, 128), (32, 128), (128, 128))
SEED = 7


class Refused(Exception):
    """A session that cannot be opened, which is a line of the stage already."""


class Stage:
    """The results of a stage: lines of text, figures for JSON, and whether everything passed.

    Attributes:
        passed: ``None`` as long as nothing was tried.
    """

    def __init__(self, file: Path, *, quick: bool) -> None:
        self.file, self.quick = file, quick
        self.passed: bool | None = None
        self.ended = False
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)
        self.write()

    def expect(self, holds: bool, line: str) -> None:
        self.passed = self.passed is not False and bool(holds)
        self.say(f"{'ok    ' if holds else 'FAILED'} {line}")

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Report a failure as a line and continue the stage."""
        try:
            yield
        except Refused:
            pass
        except Exception as error:  # noqa: BLE001 - one failure must not end the other measurements
            traceback.print_exc()
            self.expect(False, f"{what}: {type(error).__name__}: {error}")

    def write(self) -> None:
        record = {"passed": self.passed, "ended": self.ended, "lines": self.lines, "figures": self.figures}
        self.file.write_text(json.dumps(record, indent=1))

    def earlier(self, name: str) -> dict[str, Any]:
        """The figures of another stage; empty if it did not run."""
        file = self.file.with_name(f"{name}.json")
        figures: dict[str, Any] = json.loads(file.read_text())["figures"] if file.is_file() else {}
        return figures


def smoke(stage: Stage) -> None:
    """Each backend, precision and mask form once, with and without CUDA graphs: whether it opens and is right, where
    its nodes run, and whether device times are available. What fails is not run again."""
    model, inputs = build("bert-3l"), feeds(2, 64, MASKS["right"])
    with isorun.Session(model, backend="ort-cpu", padding="keep") as session:
        wanted = session.run(None, inputs)
    for backend, precision in fp16_first(available(stage)):
        for form, graphs in ways(backend):
            what = key(backend, precision, form, graphs=graphs)
            stage.figures[what] = {"ok": False}
            stage.write()  # shows where the process died, if it does
            with (
                stage.trying(what),
                opened(stage, model, backend, precision, ["2x64"], form=form, graphs=graphs) as session,
            ):
                for _ in range(3):  # the first records a graph, the others replay it
                    outputs = session.run(None, inputs)
                real = inputs["attention_mask"] != 0
                off = float(np.abs(outputs[0][real].astype(np.float64) - wanted[0][real]).max())
                times = session.device_times(inputs, 20)
                stage.figures[what] = {
                    "ok": bool(off < SMOKE_OFF),
                    "device_ms": None if times is None else float(np.median(times)),
                    "provenance": session.provenance.as_dict(),
                }
                on_device = "no device events" if times is None else f"{np.median(times):.3f} ms on the device"
                stage.expect(off < SMOKE_OFF, f"{what}: off by {off:.1e} from fp32 on the CPU, {on_device}")


def key(backend: str, precision: str, form: str, *, graphs: bool) -> str:
    """The name of a configuration in the stage ``smoke``."""
    return " ".join(filter(None, (backend, precision, form, "with graphs" if graphs else "")))


def ways(backend: str) -> list[tuple[str, bool]]:
    """Mask forms with and without CUDA graphs, the fastest first."""
    takes = registry.get(backend).capabilities.options
    forms = list(FORMS) if "attention" in takes else [""]
    return [(form, graphs) for graphs in ((True, False) if "cuda_graphs" in takes else (False,)) for form in forms]


def best(stage: Stage, backend: str, precision: str) -> tuple[str, bool]:
    """The fastest configuration that was right in the stage ``smoke``; the fastest if it did not run."""
    seen, known = stage.earlier("smoke"), ways(backend)
    right = [way for way in known if seen.get(key(backend, precision, way[0], graphs=way[1]), {"ok": True})["ok"]]
    return (right or known)[0]


def fp16_first(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Required configurations first."""
    return sorted(pairs, key=lambda pair: pair[1] != "fp16")


def limits(stage: Stage) -> None:
    """The card's rates: the best of ten runs timed by events, after three warm-up runs."""
    if lacks_torch(stage):
        return
    import torch

    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.float16) for _ in range(2))
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    multiplied = best_ms(lambda: torch.matmul(a, b))
    copy = best_ms(lambda: target.copy_(source))
    stage.figures = {
        "fp16_product_tflops": 2 * side**3 / multiplied / 1e9,
        "copy_gb_per_s": 2 * source.numel() / copy / 1e6,
    }
    stage.passed = True
    stage.say(f"fp16 product {side} x {side} x {side}: {stage.figures['fp16_product_tflops']:.0f} TFLOP/s")
    stage.say(f"copy of 1 GiB, read and written: {stage.figures['copy_gb_per_s']:.0f} GB/s")


def lacks_torch(stage: Stage) -> bool:
    """Whether PyTorch is missing, which is then reported."""
    if importlib.util.find_spec("torch") is None:
        stage.say("       skipped: PyTorch is not installed")
        return True
    return False


def best_ms(work: Callable[[], Any]) -> float:
    import torch

    for _ in range(3):
        work()
    elapsed = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        elapsed.append(start.elapsed_time(end))
    return min(elapsed)


def parities(stage: Stage) -> None:
    """Every backend and precision against fp32 on the CPU, under the five kinds of mask."""
    model = build("bert-3l")
    cases = [(kind, feeds(4, 64, MASKS[kind])) for kind in MASKS]
    with isorun.Session(model, backend="ort-cpu", padding="keep") as session:
        expected = [session.run(None, inputs) for _, inputs in cases]
        names = [spec.name for spec in session.get_outputs()]
    for backend, precision in available(stage):
        what = f"{backend} {precision}"
        with stage.trying(what), opened(stage, model, backend, precision, ["1..4x64"]) as session:
            tolerance = parity.DEFAULT_TOLERANCES[precision]
            for (kind, inputs), wanted in zip(cases, expected, strict=True):
                with stage.trying(f"{what} {kind}"):  # each kind may use another graph
                    one_parity(stage, f"{what} {kind}", inputs, session.run(None, inputs), wanted, names, tolerance.rms)
            stage.figures[f"{backend} {precision}"] = session.provenance.as_dict()


def one_parity(
    stage: Stage,
    what: str,
    inputs: dict[str, np.ndarray],
    outputs: list[np.ndarray],
    expected: list[np.ndarray],
    names: list[str],
    most: float,
) -> None:
    real = inputs["attention_mask"] != 0
    for name, output, right in zip(names, outputs, expected, strict=True):
        keep = real if output.ndim == 3 else real.any(axis=1)
        off = np.abs(output[keep].astype(np.float64) - right[keep])
        scale = float(np.sqrt(np.mean(np.square(right[keep], dtype=np.float64))))
        rms = float(np.sqrt(np.mean(np.square(off)))) / scale
        fits = bool(np.isfinite(output).all()) and rms <= most
        stage.expect(fits, f"{what} {name}: rms {rms:.1e} of at most {most:.0e}")


def conformance(stage: Stage) -> None:
    """The conformance suite on every available GPU backend."""
    from isorun_conformance import certificate, runner

    for backend in BACKENDS:
        if not registry.get(backend).availability().ok:
            stage.say(f"       {backend} is skipped: {registry.get(backend).availability().reason}")
            continue
        with stage.trying(backend):
            report = runner.run(backend, progress=lambda check, ended, of: print(f"{ended}/{of} {check}", flush=True))
            stage.figures[backend] = report.as_dict()
            document = certificate.certificate(report)
            stage.file.with_name(f"{backend}.json").write_text(json.dumps(document, indent=2) + "\n")
            failed = [check for check in report.checks if check.outcome not in ("passed", "skipped")]
            stage.expect(report.passed, f"{backend}: {len(failed)} of {len(report.checks)} checks of the suite fail")
            for check in failed:
                stage.say(f"       {check.name}, {check.outcome}: {check.message.partition(chr(10))[0]}")


def times(stage: Stage) -> None:
    """Medians of host time around a run and of device time by events, and the latter's share of the measured product
    rate. With CUDA graphs; ``host`` has feeds and outputs in host memory."""
    models = ("bert-3l",) if stage.quick else ("bert-base", "bert-large", "bert-3l")
    rate = stage.earlier("limits").get("fp16_product_tflops")
    shapes = [f"{batch}x{sequence}" for batch, sequence in SHAPES]
    pairs = list(available(stage))
    for precision in dict.fromkeys(precision for _, precision in fp16_first(pairs)):
        for name, backend in product(models, [candidate for candidate, supported in pairs if supported == precision]):
            what, (form, graphs) = f"{name} {backend} {precision}", best(stage, backend, precision)
            with (
                stage.trying(what),
                opened(stage, build(name), backend, precision, shapes, form=form, graphs=graphs) as session,
            ):
                for shape in SHAPES:
                    with stage.trying(f"{what} {shape}"):
                        one_time(stage, session, (name, backend, precision), shape, rate)
                way = {"form": form, "graphs": graphs}
                gpus = [vars(device) for device in gpu.describe()]
                stage.figures[what] = {**way, "provenance": session.provenance.as_dict(), "gpus": gpus}
                if way != dict(zip(way, ways(backend)[0], strict=True)):
                    stage.say(f"       {what}: by {key('', '', form, graphs=graphs) or 'no graphs'}, the rest failed")


def one_time(
    stage: Stage, session: isorun.Session, what: tuple[str, str, str], shape: tuple[int, int], rate: float | None
) -> None:
    name, backend, precision = what
    batch, sequence = shape
    inputs = feeds(batch, sequence, MASKS["none"])
    runs = 20 if stage.quick else 200
    wall = wall_ms(session, inputs, runs)
    own = session.device_times(inputs, max(5, min(runs, int(SECONDS * 1e3 / wall))))
    device = None if own is None else float(np.median(own))
    operations = encoder_operations(name, batch, sequence)
    which = f"{name} {backend} {precision} {batch}x{sequence}"
    took = wall if device is None else device
    share = None if rate is None else operations / took / 1e9 / rate
    stage.figures[which] = {"host_ms": wall, "device_ms": device, "operations": operations, "share": share}
    shown = "" if share is None else f", {share:.0%} of the fp16 product"
    line = f"{which}: host {wall:.3f} ms, device {'-' if device is None else f'{device:.3f} ms'}{shown}"
    limit = WANTED_MS.get((name, batch, sequence))
    if backend == "ort-cuda" and precision == "fp16" and limit is not None and not stage.quick:
        stage.expect(took <= limit, f"{line}; target: at most {limit} ms")
    elif precision == "fp16" and shape == (32, 128) and share is not None and name != "bert-3l":
        stage.expect(share >= WANTED_SHARE, f"{line}; target: {WANTED_SHARE:.0%}")
    else:
        stage.passed = stage.passed is not False
        stage.say(f"       {line}")


def wall_ms(session: isorun.Session, inputs: dict[str, np.ndarray], runs: int, names: list[str] | None = None) -> float:
    """The median of the requested runs, or of as many as time permits, after warm-up runs."""
    samples: list[float] = []
    for _ in range(3):
        session.run(names, inputs)
    until = time.perf_counter() + SECONDS
    while len(samples) < runs and (len(samples) < 5 or time.perf_counter() < until):
        start = time.perf_counter_ns()
        session.run(names, inputs)
        samples.append((time.perf_counter_ns() - start) / 1e6)
    return float(np.median(samples))


def kernels(stage: Stage) -> None:
    """Which kernels run for each mask form of ``ort-cuda``, by PyTorch's profiler, which sees the whole process."""
    if lacks_torch(stage):
        return
    from torch.profiler import ProfilerActivity, profile

    model, runs = build("bert-3l" if stage.quick else "bert-base"), 5
    inputs = feeds(8, 128, MASKS["right"])
    cases = [("ort-cuda", form) for form in (*FORMS, "packed")] + [("tensorrt", ""), ("ort-tensorrt", "")]
    backends = dict.fromkeys(backend for backend, _ in available(stage))
    for backend, form in cases:
        what = f"{backend} fp16 {form}".rstrip()
        padding = "remove" if form == "packed" else "keep"
        if backend not in backends:
            continue
        with (
            stage.trying(what),
            opened(stage, model, backend, "fp16", ["8x128"], form=form, graphs=False, padding=padding) as session,
        ):
            for _ in range(3):
                session.run(None, inputs)
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                for _ in range(runs):
                    session.run(None, inputs)
            kinds = sorted(profiled.key_averages(), key=lambda kind: -kind.self_device_time_total)
            took = {kind.key: {"us": kind.self_device_time_total / runs, "calls": kind.count / runs} for kind in kinds}
            stage.figures[what] = took
            total = sum(work["us"] for work in took.values())
            stage.expect(total > 0, f"{what}: {total:.0f} us of {len(took)} kinds of work on the device in a run")
            for key, work in list(took.items())[:8]:
                stage.say(f"       {work['us']:8.1f} us, {work['calls']:5.1f} calls  {key[:140]}")


def packing(stage: Stage) -> None:
    """Padding removal on ``ort-cuda``, by one kernel and by groups of rows, against the padded batch: whether it is
    right under the five kinds of mask, and from which batch size it is faster. Lengths are lognormal, median 40."""
    pairs = fp16_first(pair for pair in available(stage) if pair[0] == PACKED)
    for backend, precision in pairs:
        what = f"{backend} {precision}, padding removed"
        with stage.trying(what):
            packed_parity(stage, what, backend, precision)
    for _, precision in pairs:
        models = ("bert-base", "bert-large") if precision == "fp16" else ("bert-base",)
        for name in ("bert-3l",) if stage.quick else models:
            packed_times(stage, name, precision)


def packed_parity(stage: Stage, what: str, backend: str, precision: str) -> None:
    model, most = build("bert-3l"), parity.DEFAULT_TOLERANCES[precision].rms
    with (
        isorun.Session(model, backend="ort-cpu", padding="remove") as right,
        opened(stage, model, backend, precision, ["4x64"], padding="remove") as session,
    ):
        names = [spec.name for spec in session.get_outputs()]
        for kind, mask in MASKS.items():
            inputs = feeds(4, 64, mask)
            for turn in ("first", "again"):  # with graphs: recorded, then replayed
                outputs = session.run(None, inputs)
                one_parity(stage, f"{what} {kind} {turn}", inputs, outputs, right.run(None, inputs), names, most)


def packed_times(stage: Stage, name: str, precision: str) -> None:
    form, graphs = best(stage, PACKED, precision)
    by_way: dict[str, dict[str, Any]] = {
        "padded": {"padding": "keep", "form": form, "graphs": graphs},
        "padded, no graphs": {"padding": "keep", "form": form, "graphs": False},
        "one kernel": {"padding": "remove", "form": "packed"},
        "one kernel, no graphs": {"padding": "remove", "form": "packed", "graphs": False},
        "groups": {"padding": "remove", "form": "plain", "graphs": False},
    }
    shapes = PACKED_SHAPES[:3] if stage.quick else PACKED_SHAPES
    for way, options in by_way.items():
        what = f"{name} {precision}, {way}"
        with stage.trying(what), opened(stage, build(name), PACKED, precision, [], **options) as session:
            for batch, sequence in shapes:
                with stage.trying(f"{what}, {batch}x{sequence}"):
                    packed_time(stage, session, f"{name} {precision} {batch}x{sequence}", way, batch, sequence)


def packed_time(stage: Stage, session: isorun.Session, what: str, way: str, batch: int, sequence: int) -> None:
    inputs = traffic(batch, sequence)
    tokens = int(inputs["attention_mask"].sum())
    timings = stage.figures.setdefault(what, {"tokens": tokens})
    runs = 20 if stage.quick else 100
    host = wall_ms(session, inputs, runs, POOLED)
    device = session.device_times(inputs, max(5, min(runs, int(SECONDS * 1e3 / host))))
    timings[way] = {"host_ms": host, "device_ms": None if device is None else float(np.median(device))}
    whole = timings.get("padded", {}).get("host_ms")
    against = "" if whole is None else f", {host / whole:.2f} of the padded batch"
    shown = "-" if device is None else f"{np.median(device):.3f} ms"
    stage.passed = stage.passed is not False
    share = f"{tokens / (batch * sequence):.0%} tokens"
    stage.say(f"       {what}, {share}, {way}: host {host:.3f} ms{against}, device {shown}")


def arrays(stage: Stage) -> None:
    """Feeds from CuPy and PyTorch, and outputs that they accept without a copy."""
    model = build("bert-3l")
    inputs = feeds(2, 64, MASKS["right"])
    for backend, precision in available(stage):
        with stage.trying(f"{backend} {precision}"), opened(stage, model, backend, precision, ["2x64"]) as session:
            wanted = session.run(None, inputs)
            late(stage, f"{backend} {precision}", session, inputs, wanted)
            for library, upload, fetch in libraries():
                on_device = {name: upload(array) for name, array in inputs.items()}
                outputs = session.run(None, on_device, device_outputs=True)
                off = max(
                    float(np.abs(fetch(output) - right).max()) for output, right in zip(outputs, wanted, strict=True)
                )
                stage.expect(off < 0.05, f"{backend} {precision} with {library}: off by {off:.1e} from host memory")


def late(
    stage: Stage, what: str, session: isorun.Session, inputs: dict[str, np.ndarray], wanted: list[np.ndarray]
) -> None:
    """Feeds that a PyTorch stream is still computing when the run starts."""
    if lacks_torch(stage):
        return
    import torch

    on_device = {name: torch.as_tensor(array, device="cuda") for name, array in inputs.items()}
    square = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(10):  # tens of milliseconds
            square = square @ square
        late_feeds = {name: array + 0 * square[0, 0].nan_to_num(0, 0, 0).long() for name, array in on_device.items()}
        outputs = session.run(None, late_feeds)
    off = max(float(np.abs(output - expected).max()) for output, expected in zip(outputs, wanted, strict=True))
    stage.expect(off < SMOKE_OFF, f"{what} with feeds that a stream was still computing: off by {off:.1e}")


def libraries() -> Iterator[tuple[str, Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]]:
    """Installed libraries of device arrays: functions to the device and back."""
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
    """Four threads with a thousand runs of mixed shapes each; device memory must not grow."""
    model = build("bert-3l")
    cases = [feeds(batch, sequence, MASKS["right"]) for batch in (1, 3, 8) for sequence in (17, 64, 128)]
    runs = 50 if stage.quick else 1000
    for backend, precision in available(stage):
        what = f"{backend} {precision}"
        with stage.trying(what), opened(stage, model, backend, precision, ["1..8x1..128"]) as session:
            wanted = [session.run(None, inputs) for inputs in cases]
            errors: list[str] = []

            def work(
                count: int,
                session: isorun.Session = session,
                errors: list[str] = errors,
                wanted: list[list[np.ndarray]] = wanted,
            ) -> None:
                for index in range(count):
                    which = index % len(cases)
                    try:
                        outputs = session.run(None, cases[which])
                    except IsorunError as error:
                        errors.append(str(error))
                        continue
                    if not all(np.allclose(*pair, atol=SMOKE_OFF) for pair in zip(outputs, wanted[which], strict=True)):
                        errors.append(f"wrong outputs for shape {cases[which]['input_ids'].shape}")

            in_threads(lambda: work(len(cases) * 4))
            before = used_mib()
            in_threads(lambda: work(runs))
            stage.expect(not errors, f"{what}: {len(errors)} errors in 4 x {runs} runs {errors[:1]}")
            if before is not None:
                grown = (used_mib() or 0) - before
                stage.expect(grown < 16, f"{what}: {grown:.0f} MiB more on the device after them")
            else:
                stage.say(f"       {what}: memory was not measured, nvidia-ml-py is not installed")


def used_mib() -> float | None:
    """Memory in use on the first GPU; ``None`` if unknown."""
    devices = gpu.describe()
    return devices[0].used_mib if devices else None


def in_threads(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result()


def matrix(stage: Stage) -> None:
    """``matrix/gpu.yaml``; its folder has the results, even if its time ends early."""
    spec = Path(__file__).resolve().parents[1] / "matrix" / "gpu.yaml"
    folder, isorun_matrix = stage.file.with_name("matrix"), [sys.executable, "-m", "isorun", "matrix"]
    try:
        code = subprocess.run([*isorun_matrix, "run", str(spec), "--out", str(folder)], check=False).returncode
        stage.expect(code == 0, f"isorun matrix run, which ends with {code}: {folder}")
    finally:
        report = [*isorun_matrix, "report", str(folder), "--format", "md"]
        completed = subprocess.run(report, check=False, capture_output=True, text=True)
        folder.with_suffix(".md").write_text(completed.stdout or completed.stderr)


def peers(stage: Stage) -> None:
    """PyTorch in fp16 with transformers' BERT of the same sizes: eager, and its launches recorded as a CUDA graph."""
    if lacks_torch(stage):
        return
    import torch
    from transformers import BertConfig, BertModel

    for name in ("bert-3l",) if stage.quick else ("bert-base", "bert-large"):
        with stage.trying(name), torch.inference_mode():
            network = BertModel(BertConfig(**presets.sizes(name))).half().cuda().eval()
            for batch, sequence in SHAPES:
                with stage.trying(f"{name} {batch}x{sequence}"):
                    peer_times(
                        stage, network, f"{name} torch fp16 {batch}x{sequence}", feeds(batch, sequence, MASKS["none"])
                    )
            for batch, sequence in PACKED_SHAPES:
                what = f"{name} torch fp16 {batch}x{sequence} padded"
                with stage.trying(what):
                    peer_times(stage, network, what, traffic(batch, sequence), masked=True)


def peer_times(stage: Stage, network: Any, what: str, inputs: dict[str, np.ndarray], *, masked: bool = False) -> None:
    """Times of PyTorch: ``host`` with feeds and outputs in host memory, as :func:`wall_ms`."""
    import torch

    names = ["input_ids", "token_type_ids", *(["attention_mask"] if masked else [])]
    on_device = {name: torch.as_tensor(inputs[name], device="cuda") for name in names}

    def around() -> None:
        outputs = network(**{name: torch.as_tensor(inputs[name], device="cuda") for name in names})
        for output in (outputs.pooler_output,) if masked else (outputs.last_hidden_state, outputs.pooler_output):
            output.cpu()

    for _ in range(3):
        around()
    samples: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(samples) < 100 and (len(samples) < 5 or time.perf_counter() < until):
        start = time.perf_counter_ns()
        around()
        samples.append((time.perf_counter_ns() - start) / 1e6)
    eager = best_ms(lambda: network(**on_device))
    figures: dict[str, float | None] = {"host_ms": float(np.median(samples)), "device_ms": eager, "graph_ms": None}
    if not masked:  # transformers inspects a mask on the host, which a capture forbids
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                network(**on_device)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(**on_device)
        figures["graph_ms"] = best_ms(graph.replay)
    stage.figures[what] = figures
    stage.passed = stage.passed is not False
    shown = "-" if figures["graph_ms"] is None else f"{figures['graph_ms']:.3f} ms"
    stage.say(f"       {what}: host {figures['host_ms']:.3f} ms, device {eager:.3f} ms, as a CUDA graph {shown}")


def build(name: str) -> Path:
    return presets.build(name, SEED, Cache())


def feeds(batch: int, sequence: int, mask: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([SEED, batch, sequence])
    return {
        "input_ids": rng.integers(0, 30000, (batch, sequence)),
        "attention_mask": mask(batch, sequence, rng),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }


def traffic(batch: int, sequence: int) -> dict[str, np.ndarray]:
    """A batch with lognormal lengths, median 40, padded on the right."""
    lengths = lognormal_lengths(batch, 40, 0.6, 4, sequence, np.random.default_rng(SEED))
    return feeds(batch, sequence, lambda *_: right_padded(lengths, sequence))


def available(stage: Stage) -> Iterator[tuple[str, str]]:
    """Available backends and precisions that have not failed yet."""
    seen = stage.earlier("smoke")
    for backend in BACKENDS:
        candidate = registry.get(backend)
        if not candidate.availability().ok:
            stage.say(f"       {backend} is skipped: {candidate.availability().reason}")
            continue
        for precision in candidate.capabilities.precisions:
            outcomes = [
                result["ok"] for what, result in seen.items() if f"{what} ".startswith(f"{backend} {precision} ")
            ]
            if not outcomes or any(outcomes) or stage.file.stem == "smoke":
                yield backend, precision
            else:
                stage.say(f"       {backend} {precision} is skipped: it failed in the stage smoke")


def options_of(
    stage: Stage, backend: str, precision: str, shapes: list[str], form: str = "auto", *, graphs: bool = True
) -> dict[str, Any]:
    """The options of a backend.

    The form of a mask is one of ``FORMS``, or an option of the backend's. With CUDA graphs unless ``graphs`` says
    otherwise, or the stage ``smoke`` found none that are right.
    """
    takes = registry.get(backend).capabilities.options
    options: dict[str, Any] = {}
    if "shapes" in takes and not (backend == "ort-tensorrt" and len(shapes) > 1):
        options["shapes"] = shapes
    if "cuda_graphs" in takes and graphs and (stage.file.stem == "smoke" or best(stage, backend, precision)[1]):
        options["cuda_graphs"] = 16
    if "attention" in takes:
        options |= FORMS.get(form, {"attention": form})
    return options


@contextmanager
def opened(
    stage: Stage,
    model: Path,
    backend: str,
    precision: str,
    shapes: list[str],
    *,
    form: str = "auto",
    graphs: bool = True,
    padding: str = "keep",
) -> Iterator[isorun.Session]:
    """A session. Where it cannot be opened, a line says so, and the block of :meth:`Stage.trying` ends."""
    options = options_of(stage, backend, precision, shapes, form, graphs=graphs)
    try:
        session = isorun.Session(model, backend=backend, precision=precision, padding=padding, options=options)
    except IsorunError as error:
        refused = backend == "ort-tensorrt" and precision == "fp32"
        stage.expect(refused, f"{backend} {precision} cannot be opened: {error}")
        raise Refused from error
    with session:
        yield session


def encoder_operations(name: str, batch: int, sequence: int) -> float:
    """Floating-point operations of the matrix products in one run: two per multiply-add."""
    sizes = presets.sizes(name)
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    tokens = batch * sequence
    dense = 2 * tokens * (4 * width * width + 2 * width * inner)
    scores = 4 * tokens * sequence * width
    return float(sizes["num_hidden_layers"] * (dense + scores))


STAGES: dict[str, Callable[[Stage], None]] = {
    "smoke": smoke,
    "limits": limits,
    "times": times,
    "parity": parities,
    "kernels": kernels,
    "packing": packing,
    "peers": peers,
    "arrays": arrays,
    "threads": threads,
    "conformance": conformance,
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
        with stage.trying(arguments.stage):
            STAGES[arguments.stage](stage)
        stage.ended = True
    finally:
        stage.figures["gpus"] = [vars(device) for device in gpu.describe()]
        stage.write()
    return 1 if stage.passed is False else 0


if __name__ == "__main__":
    sys.exit(main())
