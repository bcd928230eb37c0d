"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isorun.plugin.backend import Backend
from isorun.system.hardware import cpu_name
from isorun.types import Capabilities, CompileConfig, LoweredModel, RuntimeReport
from isorun_backends.onnxruntime.session import OPTIONS, OrtExecutable, executed, open_session, options, versions

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CPUExecutionProvider"

# It puts SkipLayerNormalization in the place of two additions and LayerNormalization, which on the CPU takes three
# times as long: 2.6 against 0.8 ms for six of them at 1 x 128 x 768 on one core (ONNX Runtime 1.31.1, AVX-512).
_SLOWER = ("SkipLayerNormFusion",)

# A model that may have 8-bit products has some of these; which it has is known once ONNX Runtime has rewritten it.
_QUANTIZED = frozenset(
    ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QAttention", "QGemm", "QLinearMatMul")
)
# Matrix products by what they compute in. What is fp16 in a model, this provider casts to fp32.
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
    """ONNX Runtime on the CPU: every ONNX operator, fp32 as the model says."""

    capabilities = Capabilities(
        dialects=("com.microsoft", "onnx", "primitive"),
        precisions=("fp32", "int8"),
        typed=("int8",),
        refused={
            "fp16": "the CPU provider has no matrix products in it, and computes such a graph's in fp32, between casts",
            "bf16": "the CPU provider has no matrix products in it, and refuses such a graph",
        },
        options=OPTIONS,
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement",),
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtCpuExecutable:
        session = open_session(self.name, model, options(self.name, config), [_PROVIDER], _SLOWER)
        return OrtCpuExecutable(self.name, session, model, config)


class OrtCpuExecutable(OrtExecutable):
    """A model loaded on the CPU provider."""

    def __init__(
        self, name: str, session: onnxruntime.InferenceSession, model: LoweredModel, config: CompileConfig
    ) -> None:
        super().__init__(name, session)
        self._model = model
        self._config = config

    def report(self) -> RuntimeReport:
        operators = self.operators()
        if _kinds(operators) & _QUANTIZED:
            operators = executed(self._name, self._model, options(self._name, self._config), [_PROVIDER], _SLOWER)
        kinds = _kinds(operators)
        return RuntimeReport(
            device=cpu_name(),
            precision="+".join(sorted(name for name, products in _PRODUCTS.items() if kinds & products)) or "fp32",
            operators=operators,
            versions=versions(),
        )


def _kinds(operators: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Operators, without their domains."""
    return {name.rpartition(".")[2] for placed in operators.values() for name in placed}
