"""Stages of ``benchmarks/gpu.py``: whether backends are right, with device arrays and from several threads too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gpu_stage import Stage, available, build, feeds, fp16_first, key, lacks_torch, opened, ways

import isorun
from isorun import parity
from isorun.errors import IsorunError, UnsupportedModel
from isorun.parity.samples import MASKS
from isorun.plugin import registry
from isorun_matrix.measurement import gpu

EXPORTS_OFF = {"fp32": 1e-4, "fp16": 0.03, "bf16": 0.1}
"""The greatest difference of an export's results, of ``1 + |x|``, by the precision whose limits apply."""
SMOKE_OFF = 0.05  # for outputs of about 1: above rounding errors, below wrong results


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
            tolerance = limits(backend, precision)
            for (kind, inputs), wanted in zip(cases, expected, strict=True):
                with stage.trying(f"{what} {kind}"):  # each kind may use another graph
                    one_parity(stage, f"{what} {kind}", inputs, session.run(None, inputs), wanted, names, tolerance.rms)
            stage.figures[f"{backend} {precision}"] = session.provenance.as_dict()


def exports(stage: Stage) -> None:
    """The newest export of each architecture and head in ``tests/fixtures``, on five masks, against plain ONNX Runtime
    on the CPU, with padding kept and removed. Rows without a real token are compared where the export's own results are
    finite and padding is kept."""
    # The helpers of the tests know the files.
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
    import exports as files

    known = {**files.manifest(), **files.modern()}
    labels = list({(entry["architecture"], entry["head"]): label for label, entry in known.items()}.values())
    for (backend, precision), padding in product(available(stage), ("keep", "remove")):
        what, wrong, chosen, kept = f"{backend} {precision} {padding}", [], labels[:3] if stage.quick else labels, 0
        for label in chosen:
            inputs = files.given(label)
            wanted = files.answers(label)
            with TemporaryDirectory() as folder:
                model = Path(folder, f"{label}.onnx")
                model.write_bytes(files.content(label))
                try:
                    with isorun.Session(model, backend=backend, precision=precision, padding=padding) as session:
                        outputs, info = session.run(None, inputs), session.model_info
                except UnsupportedModel as error:
                    kept += padding == "remove"
                    if padding == "keep":
                        wrong.append(f"{label}: {error}")
                    continue
                except IsorunError as error:
                    wrong.append(f"{label}: {type(error).__name__}: {error}")
                    continue
            if padding == "remove":
                real = info.attended(inputs) != 0
                rows = [real if name in (info.token_outputs or ()) else real.any(axis=1) for name in info.output_names]
                outputs = [output[keep] for output, keep in zip(outputs, rows, strict=True)]
                wanted = [output[keep] for output, keep in zip(wanted, rows, strict=True)]
            off = max(distance(*pair) for pair in zip(outputs, wanted, strict=True))
            stage.figures[f"{what} {label}"] = off
            if not off <= EXPORTS_OFF[registry.get(backend).capabilities.tolerance(precision)]:
                wrong.append(f"{label}: off by {off:.1e}")
        refused = f", {kept} keep their padding" if padding == "remove" else ""
        stage.expect(not wrong, f"{what}: {len(wrong)} of {len(chosen)} exports are wrong or refused{refused}")
        for line in wrong:
            stage.say(f"       {line}")


def limits(backend: str, precision: str) -> parity.Tolerance:
    """The limits of parity that a backend declares for a precision."""
    return parity.DEFAULT_TOLERANCES[registry.get(backend).capabilities.tolerance(precision)]


def distance(output: np.ndarray, wanted: np.ndarray) -> float:
    """The greatest difference where both are defined, of ``1 + |wanted|``; infinite for another shape or a new NaN."""
    finite = np.isfinite(wanted)
    if output.shape != wanted.shape or not np.isfinite(output[finite]).all():
        return float("inf")
    off = np.abs(output[finite].astype(np.float64) - wanted[finite]) / (1 + np.abs(wanted[finite]))
    return float(off.max(initial=0))


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


def arrays(stage: Stage) -> None:
    """Feeds from CuPy and PyTorch, and outputs that they accept without a copy."""
    model = build("bert-3l")
    inputs = feeds(2, 64, MASKS["right"])
    for backend, precision in available(stage):
        if not registry.get(backend).capabilities.device_arrays:
            continue
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
