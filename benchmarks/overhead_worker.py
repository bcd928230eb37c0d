"""Overhead of an isolated environment per call: ``python benchmarks/overhead.py --worker``.

Creates an environment in a temporary folder with the installed versions of the runtimes, and compares a session in it
with a session on the same backend in this process, interleaved, on the same file:

- An addition of three inputs of (1, 128), where the round trip is all there is. A runtime is slower on a thread that
  has just waited, as a worker's has; that is part of the difference.
- 100 MB of feeds for a model that returns their shape, compared with NumPy copying them to memory written before:
  ordinary memory, for which the kernel may use huge pages, and shared memory, for which it mostly does not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from overhead_calls import RAW, addition, interleaved

import isorun
from isorun.isolation import environments

_PAIRS = 6
_TURN = 100  # calls: one alone in this process would find the caches as the worker left them, and be slower
_LARGE = 100_000_000  # bytes
_LARGE_ROUNDS = 60
_SHAPE = '<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (int64[1] y) { y = Shape (x) }'


def measure(rounds: int, threads: int) -> list[dict[str, Any]]:
    """Both measurements on each backend."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[environments.FOLDER_VARIABLE] = str(folder / "environments")
        installed = [f"{package}=={version(package)}" for package in ("numpy", "onnxruntime", "openvino")]
        environment = environments.create("overhead", python=sys.executable, install=installed).name
        for backend in RAW:
            open_ = partial(isorun.Session, backend=backend, threads=threads, cache_dir=folder / "cache")
            rows += [small(folder, open_, environment, rounds), large(folder, open_, environment)]
            _show(backend, *rows[-2:])
            for row in rows[-2:]:
                row["backend"] = backend
    return rows


def small(folder: Path, open_: Callable[..., isorun.Session], environment: str, rounds: int) -> dict[str, Any]:
    """Microseconds: the mean over several pairs of sessions of the medians in each."""
    model, feeds = addition(folder)
    pairs = []
    for turn in range(_PAIRS):
        with contextlib.ExitStack() as stack:
            calls = _opened(stack, model, open_, environment, worker_first=turn % 2 == 1)
            pairs.append(interleaved(calls, feeds, rounds // _PAIRS, _TURN))
    differences = [pair["worker"] - pair["here"] for pair in pairs]
    medians = {name: statistics.mean(pair[name] for pair in pairs) for name in ("here", "worker")}
    return {"what": "three inputs", **medians, "differences": differences}


def large(folder: Path, open_: Callable[..., isorun.Session], environment: str) -> dict[str, Any]:
    """Milliseconds: medians."""
    model = folder / "shape.onnx"
    onnx.save(onnx.parser.parse_model(_SHAPE), model)
    feeds = {"x": np.ones(_LARGE // 4, np.float32)}
    written = np.zeros_like(feeds["x"])
    shared = np.frombuffer(mmap.mmap(-1, _LARGE), np.float32)
    shared[...] = 0
    with contextlib.ExitStack() as stack:
        calls = _opened(stack, model, open_, environment, worker_first=False)
        calls["copy"] = lambda inputs: np.copyto(written, inputs["x"])
        calls["shared copy"] = lambda inputs: np.copyto(shared, inputs["x"])
        taken = interleaved(calls, feeds, _LARGE_ROUNDS)
    return {"what": "100 MB of feeds", **{name: median / 1000 for name, median in taken.items()}}


def _opened(
    stack: contextlib.ExitStack,
    model: Path,
    open_: Callable[..., isorun.Session],
    environment: str,
    worker_first: bool,
) -> dict[str, Callable[[Any], Any]]:
    where = {"here": None, "worker": environment}
    names = ("worker", "here") if worker_first else ("here", "worker")
    return {name: partial(stack.enter_context(open_(model, environment=where[name])).run, None) for name in names}


def _show(backend: str, few: dict[str, Any], many: dict[str, Any]) -> None:
    differences = few["differences"]
    print(
        f"{backend:<10}three inputs: {few['here']:.1f} us here, {few['worker']:.1f} us in a worker, "
        f"{statistics.mean(differences):.1f} us more ({min(differences):.1f} to {max(differences):.1f})"
    )
    print(
        f"{'':<10}100 MB of feeds: {many['worker']:.2f} ms in a worker, {many['here']:.2f} ms here; to copy them "
        f"{many['copy']:.2f} ms ({_LARGE / many['copy'] / 1e6:.1f} GB/s), to shared memory {many['shared copy']:.2f} ms"
    )
