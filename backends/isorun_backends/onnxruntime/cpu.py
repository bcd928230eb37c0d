"""The backend ``ort-cpu``: ONNX Runtime's CPU provider."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Backend,
    BackendFailed,
    Capabilities,
    CompileConfig,
    InvalidOption,
    LoweredModel,
    RuntimeReport,
    UnsupportedModel,
    cpu_flags,
    cpu_name,
)
from isorun_backends.common_quantization import saturates
from isorun_backends.onnxruntime import packed_weights, placement, precision_probe
from isorun_backends.onnxruntime.executable import OrtExecutable
from isorun_backends.onnxruntime.session import (
    OPTIONS,
    SESSION_CONFIG,
    as_text,
    open_session,
    session_options,
    versions,
)

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

# Its weights are integers, what it multiplies has the type that its attribute ``accuracy_level`` names.
_FEW_BITS, _ROUNDED = "MatMulNBits", 4

# The kernels for Arm round the operands of products with weights to bf16, of at least 32 rows and columns. Attention's
# own products stay in fp32. The flags of x86-64 have other names (avx512_bf16), and ONNX Runtime no such kernels there.
_FAST_MATH = "mlas.enable_gemm_fastmath_arm64_bfloat16"
_PRECISIONS = ("fp32", "bf16", "int8") if "bf16" in cpu_flags() else ("fp32", "int8")
_REFUSED = {
    "fp16": "the CPU provider has no fp16 matrix products and would compute in fp32, between casts",
    "bf16": "the CPU provider has bf16 matrix products for Arm processors with bf16 arithmetic only",
}
# Weights in int8 become uint8, for which there are kernels that add in 32 bits. It fails if nodes share them (1.31.1).
_EXACT_PRODUCTS, _SHARED = "session.x64quantprecision", "Attempt to replace the existing tensor"


class OrtCpu(Backend):
    """ONNX Runtime on the CPU: every ONNX operator, in fp32 or int8; bf16 on Arm."""

    contract = 2
    capabilities = Capabilities(
        priority=10,
        dialects=("com.microsoft.cpu", "onnx", "primitive"),
        precisions=_PRECISIONS,
        typed=("fp32", "int8"),
        refused={precision: reason for precision, reason in _REFUSED.items() if precision not in _PRECISIONS},
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
        read = _options(self, model, config)
        if as_text(self.name, SESSION_CONFIG, read[SESSION_CONFIG]).get(_FAST_MATH, "0") != "0":
            raise InvalidOption(self.name, "session_config", f"{_FAST_MATH} is reserved. Use precision='bf16' instead")
        options = session_options(self.name, read, config.threads)
        if config.precision == "bf16":
            _fast_math(options)
            precision_probe.require(self.name, "bf16", precision_probe.measure(_PROVIDER, _fast_math))
        shared = _with_packed_weights(self, model, config)
        try:
            session = open_session(self.name, shared, options, [_PROVIDER], disabled_optimizers=_SLOWER)
        except BackendFailed as error:
            if _SHARED not in str(error) or saturates(model) is False:
                raise
            raise UnsupportedModel(
                f"Nodes of {model.path} share weights of 8 bits, which {self.name} computes exactly on no processor "
                "without VNNI. Use the backend openvino"
            ) from error
        return OrtCpuExecutable(self, session, model, config)


def _options(backend: OrtCpu, model: LoweredModel, config: CompileConfig) -> dict[str, Any]:
    """The session's options, with kernels that do not saturate if the model needs them."""
    options = dict(backend.read_options(config.options))
    if saturates(model) is not False:
        options["session_config"] = {_EXACT_PRODUCTS: "1", **options["session_config"]}
    return options


def _with_packed_weights(backend: OrtCpu, model: LoweredModel, config: CompileConfig) -> LoweredModel:
    """The model whose packed weights all sessions share, unless what to do with weights is the caller's."""
    if config.options.get(SESSION_CONFIG):
        return model
    settings = (versions(), config.precision, config.options.get("graph_optimization_level"))

    def write(path: Path, entries: Mapping[str, str]) -> None:
        options = dict(_options(backend, model, config))
        options |= {"profile_prefix": None, SESSION_CONFIG: {**options[SESSION_CONFIG], **entries}}
        writing = session_options(backend.name, options, threads=1)
        if config.precision == "bf16":
            _fast_math(writing)
        writing.optimized_model_filepath = str(path)
        open_session(backend.name, model, writing, [_PROVIDER], disabled_optimizers=_SLOWER)

    return packed_weights.share(model, config.cache_dir, settings, write)


def _fast_math(options: onnxruntime.SessionOptions) -> list[str]:
    """Have products computed in bf16, and return the providers."""
    options.add_session_config_entry(_FAST_MATH, "1")
    return [_PROVIDER]


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
        precisions = {precision for precision, products in _PRODUCTS.items() if kinds & products}
        if _FEW_BITS in kinds:
            precisions.add("int8" if _rounds_activations(self._model.path) else "fp32")
        computed = "+".join(sorted(precisions)) or "fp32"
        return replace(
            report, precision="bf16" if computed == "fp32" and self._config.precision == "bf16" else computed
        )


def _rounds_activations(path: Path) -> bool:
    """Whether a model asks of products with weights of few bits that they round what they multiply to 8 bits."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph.node
    levels = [attribute.i for node in nodes for attribute in node.attribute if attribute.name == "accuracy_level"]
    return _ROUNDED in levels


def _optimized_operators(backend: OrtCpu, model: LoweredModel, config: CompileConfig) -> dict[str, dict[str, int]]:
    """Provider to operators after all graph optimizations.

    The assignment of an open session is recorded before the last optimizations, which turn quantized operators into
    integer ones. So the model is loaded once more and written as optimized; the written graph is what runs.
    """
    name, options = backend.name, _options(backend, model, config)
    with tempfile.TemporaryDirectory(prefix="isorun-") as folder:
        path = Path(folder) / "optimized.onnx"
        options = {**options, "profile_prefix": None}
        writing = session_options(name, options, config.threads)
        writing.optimized_model_filepath = str(path)
        writing.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(name, model, writing, [_PROVIDER], disabled_optimizers=_SLOWER)
        reading = session_options(name, {**options, "graph_optimization_level": "disable"}, threads=1)
        optimized = open_session(name, replace(model, path=path), reading, [_PROVIDER])
        return placement.count(placement.assigned(name, optimized))


def _kinds(operators: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Operators without their domains."""
    return {name.rpartition(".")[2] for placed in operators.values() for name in placed}
