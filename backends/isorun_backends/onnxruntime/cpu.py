"""The backend ``ort-cpu``: ONNX Runtime's CPU provider."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from isorun.plugin import Backend, Capabilities, CompileConfig, LoweredModel, RuntimeReport, cpu_name
from isorun_backends.onnxruntime import placement
from isorun_backends.onnxruntime.executable import OrtExecutable
from isorun_backends.onnxruntime.session import OPTIONS, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CPUExecutionProvider"

# It replaces two additions and a LayerNormalization by SkipLayerNormalization, which takes three times as long on the
# CPU: 2.6 against 0.8 ms for six of them at 1 x 128 x 768 on one core (ONNX Runtime 1.31.1, AVX-512).
_SLOWER = ("SkipLayerNormFusion",)

# A model that may have 8-bit products has some of these; which it has is known once ONNX Runtime has rewritten it.
_QUANTIZED = frozenset(
    ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QAttention", "QGemm", "QLinearMatMul")
)
# Matrix products by what they compute in. This provider casts fp16 models to fp32.
_PRODUCTS = {
    "int8": frozenset(
        (
            *("MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "DynamicQuantizeMatMul", "QAttention", "QGemm"),
            *("ConvInteger", "QLinearConv"),
        )
    ),
    "fp32": frozenset(
        (
            *("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Attention", "MultiHeadAttention", "PackedAttention"),
            *("Conv", "FusedConv", "Einsum"),
        )
    ),
}


class OrtCpu(Backend):
    """ONNX Runtime on the CPU: every ONNX operator, in fp32 or int8."""

    contract = 2
    capabilities = Capabilities(
        priority=10,
        dialects=("com.microsoft.cpu", "onnx", "primitive"),
        precisions=("fp32", "int8"),
        typed=("int8",),
        refused={
            "fp16": "the CPU provider has no fp16 matrix products and would compute in fp32, between casts",
            "bf16": "the CPU provider has no bf16 matrix products and rejects such a graph",
        },
        options=OPTIONS,
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        usable_after_failure=True,
        deterministic=True,
        checks_indices=True,
        runs_on_caller=True,
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement",),
        faults="isorun_backends.onnxruntime.faults:CPU",
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtCpuExecutable:
        options = session_options(self.read_options(config.options), config.threads)
        session = open_session(self.name, model, options, [_PROVIDER], disabled_optimizers=_SLOWER)
        return OrtCpuExecutable(self, session, model, config)


class OrtCpuExecutable(OrtExecutable):
    """A model loaded on the CPU provider."""

    def __init__(
        self, backend: OrtCpu, session: onnxruntime.InferenceSession, model: LoweredModel, config: CompileConfig
    ) -> None:
        super().__init__(backend.name, session, cpu_name(), "fp32")
        self._backend, self._model, self._config = backend, model, config

    def report(self) -> RuntimeReport:
        report = super().report()
        if _kinds(report.operators) & _QUANTIZED:
            report = replace(report, operators=_optimized_operators(self._backend, self._model, self._config))
        kinds = _kinds(report.operators)
        precisions = sorted(precision for precision, products in _PRODUCTS.items() if kinds & products)
        return replace(report, precision="+".join(precisions) or "fp32")


def _optimized_operators(backend: OrtCpu, model: LoweredModel, config: CompileConfig) -> dict[str, dict[str, int]]:
    """Provider to operators after all graph optimizations.

    The assignment of an open session is recorded before the last optimizations, which turn quantized operators into
    integer ones. So the model is loaded once more and written as optimized; the written graph is what runs.
    """
    name, options = backend.name, backend.read_options(config.options)
    with tempfile.TemporaryDirectory(prefix="isorun-") as folder:
        path = Path(folder) / "optimized.onnx"
        writing = session_options({**options, "profile_prefix": None}, config.threads)
        writing.optimized_model_filepath = str(path)
        writing.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(name, model, writing, [_PROVIDER], disabled_optimizers=_SLOWER)
        reading = session_options({**options, "profile_prefix": None, "graph_optimization_level": "disable"}, threads=1)
        optimized = open_session(name, replace(model, path=path), reading, [_PROVIDER])
        return placement.count(placement.assigned(name, optimized))


def _kinds(operators: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Operators without their domains."""
    return {name.rpartition(".")[2] for placed in operators.values() for name in placed}
