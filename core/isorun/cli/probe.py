"""Proof that a backend computes: a small model, run on it and compared with NumPy.

``python -m isorun.cli.probe NAME ENVIRONMENT PRECISION...`` prints each result as JSON: a runtime that crashes takes
that process with it and no other. ENVIRONMENT is empty for the process itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from isorun.errors import IsorunError

SECONDS = 120
_MARK = "probed: "  # a runtime may print what it likes before
_TOLERANCE = {
    "fp32": 1e-5,
    "fp64": 1e-5,
    "fp16": 5e-3,
    "bf16": 2e-2,
    "int8": 0.5,
}  # of values around 1; the model's type is float32


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        precision: what was asked for.
        ok: whether the answer was right.
        error: how far it was off at most; ``None`` where there was no answer.
        milliseconds: the time of the second run.
        message: why it is not right.
    """

    precision: str
    ok: bool
    error: float | None = None
    milliseconds: float | None = None
    message: str = ""


def probe(name: str, precision: str, environment: str | None = None) -> ProbeResult:
    """Compute ``tanh(x @ w + b)`` of 8 x 64 by 64 x 32 on a backend, in this process or in an environment. In int8 it
    is a layer of an encoder, since those are what is quantized."""
    import isorun
    from isorun.compilation.calibration import CalibrationWarning

    random = np.random.default_rng(0)
    try:
        model, feeds, expected = _layer(random) if precision == "int8" else _dense(random)
        with (
            warnings.catch_warnings(action="ignore", category=CalibrationWarning),  # one layer's own feeds are enough
            tempfile.TemporaryDirectory() as cache,
            isorun.Session(
                model,
                backend=name,
                precision=precision,
                environment=environment,
                calibration=[feeds] if precision == "int8" else None,
                cache_dir=cache,
            ) as session,
        ):
            session.run(None, feeds)
            start = time.perf_counter()
            got = session.run(None, feeds)[0]
            milliseconds = (time.perf_counter() - start) * 1e3
    except IsorunError as error:
        return ProbeResult(precision, ok=False, message=str(error))
    if got.shape != expected.shape:
        return ProbeResult(precision, ok=False, message=f"it gave shape {got.shape} for {expected.shape}")
    off = float(np.max(np.abs(got - expected)))
    tolerance = _TOLERANCE.get(precision, _TOLERANCE["bf16"])
    if not off <= tolerance:  # a NaN is not
        return ProbeResult(precision, ok=False, error=off, message=f"it is off by {off:.2e}; {tolerance:.0e} may be")
    return ProbeResult(precision, ok=True, error=off, milliseconds=milliseconds)


def probe_in_process(
    name: str, precisions: Sequence[str], environment: str | None = None, seconds: float = SECONDS
) -> list[ProbeResult]:
    """Probe in every precision, in a process of its own, which may take so many seconds."""
    # -P: a file of the user's that is called numpy.py must not be taken for the package.
    command = [sys.executable, "-P", "-m", "isorun.cli.probe", name, environment or "", *precisions]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        output, ended = done.stdout, _how(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as expired:
        before = expired.stdout or b""  # bytes, though text was asked for (CPython issue 87597)
        output = before.decode() if isinstance(before, bytes) else before
        ended = f"it did not end within {seconds:.0f} s"
    results = [ProbeResult(**json.loads(line[len(_MARK) :])) for line in output.splitlines() if line.startswith(_MARK)]
    return results + [ProbeResult(each, ok=False, message=ended) for each in precisions[len(results) :]]


def _how(code: int, said: str) -> str:
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = said.strip().splitlines()[-1:]
    return ": ".join([f"its process ended with {how}", *last])


_Case = tuple[bytes, dict[str, np.ndarray], np.ndarray]  # a model, what to feed it, and what is right


def _dense(random: np.random.Generator) -> _Case:
    from onnx import TensorProto, helper, numpy_helper

    x = random.standard_normal((8, 64), np.float32)
    w = random.standard_normal((64, 32), np.float32) / np.float32(8)
    b = random.standard_normal(32, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["y"]),
        ],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 32])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), {"x": x}, np.tanh(x.astype(np.float64) @ w.astype(np.float64) + b)


def _layer(random: np.random.Generator) -> _Case:
    import onnx_ir as ir

    from isorun import Session
    from isorun.graph.builders.encoder import EncoderConfig, encoder
    from isorun.models.presets import SeededWeights

    config = EncoderConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, pooler=False
    )
    model = ir.serde.serialize_model(encoder(config, SeededWeights(0), "probe")).SerializeToString()
    ids = random.integers(0, 64, (4, 16))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with (
        tempfile.TemporaryDirectory() as cache,
        Session(model, "reference", precision="fp64", cache_dir=cache) as right,
    ):
        return model, feeds, right.run(None, feeds)[0]


if __name__ == "__main__":
    backend, where, *asked = sys.argv[1:]
    for each in asked:
        print(
            _MARK + json.dumps(asdict(probe(backend, each, where or None))), flush=True
        )  # one that crashes leaves the others
