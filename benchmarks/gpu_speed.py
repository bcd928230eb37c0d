"""Stages of ``benchmarks/gpu.py``: the rates of the card, and times and kernels of backends.

Figures are fractions of what the same card reaches in the stage ``limits``: a large copy, and a large product in fp16,
both by PyTorch.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from gpu_stage import (
    FORMS,
    SECONDS,
    SHAPES,
    Stage,
    available,
    best,
    best_ms,
    build,
    feeds,
    fp16_first,
    key,
    lacks_torch,
    opened,
    wall_ms,
    ways,
)

import isorun
from isorun.models import presets
from isorun.parity.samples import MASKS
from isorun_matrix.measurement import gpu

WANTED_MS = {("bert-base", 1, 128): 0.5, ("bert-large", 1, 128): 1.1}  # fp16, on an H200: targets for device time
WITH_TARGETS = ("ort-cuda", "tensorrt", "ort-tensorrt")
WANTED_SHARE = 0.45  # of the measured product, at 32 x 128


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
    elif backend in WITH_TARGETS and precision == "fp16" and shape == (32, 128) and share and name != "bert-3l":
        stage.expect(share >= WANTED_SHARE, f"{line}; target: {WANTED_SHARE:.0%}")
    else:
        stage.passed = stage.passed is not False
        stage.say(f"       {line}")


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


def encoder_operations(name: str, batch: int, sequence: int) -> float:
    """Floating-point operations of the matrix products in one run: two per multiply-add."""
    sizes = presets.sizes(name)
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    tokens = batch * sequence
    dense = 2 * tokens * (4 * width * width + 2 * width * inner)
    scores = 4 * tokens * sequence * width
    return float(sizes["num_hidden_layers"] * (dense + scores))
