"""Proof that a backend computes: a small model, run on it and compared with NumPy.

``python -m isorun.cli.probe FILE NAME ENVIRONMENT PRECISION...`` reports each result: a runtime can only crash that
process. An empty ENVIRONMENT means the process itself.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from isorun.errors import BackendUnavailable, IsorunError
from isorun.system.subprocesses import ask, tell

SECONDS = 120
_TOLERANCE = {"fp32": 1e-5, "fp64": 1e-5, "fp16": 5e-3, "bf16": 2e-2, "int8": 0.5}  # of float32 values around 1


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    Attributes:
        ok: whether the output was right; ``None`` if the backend reports that it cannot do this here.
        error: the maximum error; ``None`` if there was no output.
        milliseconds: the time of the second run.
        message: why it is not ok.
    """

    precision: str
    ok: bool | None
    error: float | None = None
    milliseconds: float | None = None
    message: str = ""


def probe(name: str, precision: str, environment: str | None = None) -> ProbeResult:
    """Compute ``tanh(x @ w + b)`` of 8 x 64 by 64 x 32 on a backend, in this process or in an environment.

    In int8, run a layer of an encoder instead, since only encoders are quantized.
    """
    import isorun
    from isorun.compilation.calibration import CalibrationWarning

    random = np.random.default_rng(0)
    try:
        model, feeds, expected = _layer(random) if precision == "int8" else _dense(random)
        with (
            warnings.catch_warnings(action="ignore", category=CalibrationWarning),  # the feeds suffice for one layer
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
            output = session.run(None, feeds)[0]
            milliseconds = (time.perf_counter() - start) * 1e3
    except BackendUnavailable as error:
        return ProbeResult(precision, ok=None, message=str(error))
    except IsorunError as error:
        return ProbeResult(precision, ok=False, message=str(error))
    if output.shape != expected.shape:
        return ProbeResult(precision, ok=False, message=f"expected shape {expected.shape}, got {output.shape}")
    error_ = float(np.max(np.abs(output - expected)))
    tolerance = _TOLERANCE.get(precision, _TOLERANCE["bf16"])
    if not error_ <= tolerance:  # also true for NaN
        message = f"the maximum error is {error_:.2e}, above the tolerance of {tolerance:.0e}"
        return ProbeResult(precision, ok=False, error=error_, message=message)
    return ProbeResult(precision, ok=True, error=error_, milliseconds=milliseconds)


def probe_in_process(
    name: str, precisions: Sequence[str], environment: str | None = None, seconds: float = SECONDS
) -> list[ProbeResult]:
    """Probe every precision in a child process with a time limit in seconds."""
    events, exit_ = ask(__name__, name, environment or "", *precisions, timeout=seconds)
    results = [ProbeResult(**event) for event in events]
    message = f"the process {exit_.how}"
    if exit_.code > 0:
        message += f": {exit_.last_line}"
    return results + [ProbeResult(precision, ok=False, message=message) for precision in precisions[len(results) :]]


_Case = tuple[bytes, dict[str, np.ndarray], np.ndarray]  # a model, its feeds, the expected output


def _dense(random: np.random.Generator) -> _Case:
    import onnx.parser
    from onnx import numpy_helper

    x = random.standard_normal((8, 64), np.float32)
    w = random.standard_normal((64, 32), np.float32) / np.float32(8)
    b = random.standard_normal(32, np.float32)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        probe (float[8, 64] x) => (float[8, 32] y) { p = MatMul (x, w)  s = Add (p, b)  y = Tanh (s) }""")
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    return model.SerializeToString(), {"x": x}, np.tanh(x.astype(np.float64) @ w.astype(np.float64) + b)


def _layer(random: np.random.Generator) -> _Case:
    import onnx_ir as ir

    from isorun import Session
    from isorun.graph.builders.encoder import encoder
    from isorun.graph.builders.encoder_config import EncoderConfig
    from isorun.models.presets import SeededWeights

    config = EncoderConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, pooler=False
    )
    model = ir.serde.serialize_model(encoder(config, SeededWeights(0), "probe")).SerializeToString()
    ids = random.integers(0, 64, (4, 16))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with (
        tempfile.TemporaryDirectory() as cache,
        Session(model, "reference", precision="fp64", cache_dir=cache) as reference,
    ):
        return model, feeds, reference.run(None, feeds)[0]


if __name__ == "__main__":
    path, backend, where, *requested = sys.argv[1:]
    for precision in requested:
        tell(path, **asdict(probe(backend, precision, where or None)))
