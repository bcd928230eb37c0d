"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from isorun.backend import Backend
from isorun.hardware import cpu_name
from isorun.types import Capabilities, CompileConfig, LoweredModel, RuntimeReport
from isorun_backends.onnxruntime.session import OPTIONS, OrtExecutable, open_session, options, versions

_PROVIDER = "CPUExecutionProvider"

# It puts SkipLayerNormalization in the place of two additions and LayerNormalization, which on the CPU takes three
# times as long: 2.6 against 0.8 ms for six of them at 1 x 128 x 768 on one core (ONNX Runtime 1.31.1, AVX-512).
_SLOWER = ("SkipLayerNormFusion",)

# A model that was quantized before it came says so by these. What is fp16 in a model, this provider casts to fp32.
_QUANTIZED = {"DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QAttention", "QGemm", "QLinearMatMul"}


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
        checks_indices=True,
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement",),
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtCpuExecutable:
        session = open_session(self.name, model, options(self.name, config), [_PROVIDER], _SLOWER)
        return OrtCpuExecutable(self.name, session)


class OrtCpuExecutable(OrtExecutable):
    """A model loaded on the CPU provider."""

    def report(self) -> RuntimeReport:
        operators = self.operators()
        kinds = {name.rpartition(".")[2] for placed in operators.values() for name in placed}
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32+int8" if kinds & _QUANTIZED else "fp32",
            operators=operators,
            versions=versions(),
        )
