"""What the stages of ``benchmarks/gpu.py`` share: the record of a stage, models, feeds and sessions."""

from __future__ import annotations

import importlib.util
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import isorun
from isorun.errors import IsorunError
from isorun.models import presets
from isorun.parity.samples import lognormal_lengths, right_padded
from isorun.plugin import registry
from isorun.system.cache import Cache

BACKENDS = ("ort-cuda", "tensorrt", "ort-tensorrt", "ort-ep:webgpu")
SHAPES = ((1, 128), (8, 128), (32, 128), (1, 384))
SECONDS = 1.5  # at most, for one figure
FORMS: dict[str, dict[str, Any]] = {
    "lengths": {"attention": "lengths"},
    "bias": {"attention": "bias"},
    "bias by CUTLASS": {"attention": "bias", "provider_options": {"sdpa_kernel": 2}},
    "plain": {"attention": "plain"},
}
"""Mask forms of ``ort-cuda`` for right padding, the fastest first: if one fails, the next is timed."""


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
