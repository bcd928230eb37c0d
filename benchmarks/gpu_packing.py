"""Stages of ``benchmarks/gpu.py``: padding removal, and PyTorch on the same batches."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gpu_correctness import limits, one_parity
from gpu_stage import (
    SECONDS,
    SHAPES,
    Stage,
    available,
    best,
    best_ms,
    build,
    feeds,
    fp16_first,
    lacks_torch,
    opened,
    traffic,
    wall_ms,
)

import isorun
from isorun.models import presets
from isorun.parity.samples import MASKS

POOLED = ["pooler_output"]  # what an embedder fetches; all token states take longer to copy than to compute
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "ort-cuda": {
        "padded": {"padding": "keep"},
        "padded, no graphs": {"padding": "keep", "graphs": False},
        "one kernel": {"padding": "remove", "form": "packed"},
        "one kernel, no graphs": {"padding": "remove", "form": "packed", "graphs": False},
        "groups": {"padding": "remove", "form": "plain", "graphs": False},
    },
    "ort-ep:webgpu": {"padded": {"padding": "keep"}, "groups": {"padding": "remove"}},
}
"""The ways to run a padded batch, by backend."""
PACKED_SHAPES = ((1, 128), (8, 128), (32, 128), (128, 128))


def packing(stage: Stage) -> None:
    """Padding removal against the padded batch: whether it is right under the five kinds of mask, and from which batch
    size it is faster. On ``ort-cuda`` by one kernel and by groups of rows. Lengths are lognormal, median 40."""
    pairs = [pair for pair in fp16_first(available(stage)) if pair[0] in WAYS]
    for backend, precision in pairs:
        what = f"{backend} {precision}, padding removed"
        with stage.trying(what):
            packed_parity(stage, what, backend, precision)
    for backend, precision in pairs:
        models = ("bert-base", "bert-large") if precision == "fp16" else ("bert-base",)
        for name in ("bert-3l",) if stage.quick else models:
            packed_times(stage, name, backend, precision)


def packed_parity(stage: Stage, what: str, backend: str, precision: str) -> None:
    model, most = build("bert-3l"), limits(backend, precision).rms
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


def packed_times(stage: Stage, name: str, backend: str, precision: str) -> None:
    form, graphs = best(stage, backend, precision)
    shapes = PACKED_SHAPES[:3] if stage.quick else PACKED_SHAPES
    for way, options in WAYS[backend].items():
        what, options = f"{name} {backend} {precision}, {way}", {"form": form, "graphs": graphs, **options}
        with stage.trying(what), opened(stage, build(name), backend, precision, [], **options) as session:
            for shape in shapes:
                with stage.trying(f"{what}, {shape}"):
                    packed_time(stage, session, f"{name} {backend} {precision}", way, shape)


def packed_time(stage: Stage, session: isorun.Session, model: str, way: str, shape: tuple[int, int]) -> None:
    batch, sequence = shape
    what, inputs = f"{model} {batch}x{sequence}", traffic(batch, sequence)
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
