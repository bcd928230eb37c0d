"""The backend ``reference``: ONNX's reference evaluator. Slow, in NumPy; the oracle for other backends.

It computes in the graph's own types: fp32, or fp16 for a graph in fp16 (NumPy accumulates fp16 products in fp32 and
rounds the sum). ``precision="fp64"`` computes and returns double precision: weights and constants are widened first, so
that any difference is the other backend's rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import (
    Backend,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    Executable,
    Feeds,
    LoweredModel,
    RuntimeReport,
    UnsupportedModel,
    cpu_name,
    runtime_errors,
)
from isorun_backends.decisions import SUFFIX, separate

if TYPE_CHECKING:
    import onnx
    from onnx.reference import ReferenceEvaluator


class Reference(Backend):
    """ONNX's reference evaluator, the oracle, in the graph's own types or in fp64."""

    contract = 2
    capabilities = Capabilities(
        priority=None,
        dialects=("primitive",),
        precisions=("fp32", "fp64", "fp16", "bf16"),
        typed=("fp16", "bf16"),
        dynamic_shapes=True,
        usable_after_failure=True,
        checks_indices=True,
        package="onnx",
        requirement="onnx",
        reports=("placement",),
        faults="isorun_backends.reference_faults:FAULTS",
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> ReferenceExecutable:
        import onnx
        from onnx.reference import ReferenceEvaluator

        def recognize(error: Exception) -> UnsupportedModel | None:
            if isinstance(error, NotImplementedError) or "No implementation for operator" in str(error):
                return UnsupportedModel(f"{self.name} does not support an operator of {model.path}: {error}")
            return None

        with runtime_errors(f"{self.name} cannot load {model.path}", recognize):
            proto = onnx.load(model.path)
            if config.precision == "fp64":
                proto = _widened(proto)
            precision = _precision(proto) or config.precision
            if config.precision not in precision.split("+"):
                raise BackendUnavailable(
                    self.name,
                    f"it computes in the model's own types, and this model's matrices are {precision}",
                    f"Use precision={' or '.join(map(repr, dict.fromkeys((precision.partition('+')[0], 'fp64'))))}.",
                )
            evaluator = ReferenceEvaluator(proto, new_ops=_corrected())
        return ReferenceExecutable(self.name, evaluator, proto, precision)


class ReferenceExecutable(Executable):
    """A model in the evaluator. NumPy uses the threads that its BLAS is configured for."""

    def __init__(self, name: str, evaluator: ReferenceEvaluator, proto: onnx.ModelProto, precision: str) -> None:
        self._name = name
        self._evaluator = evaluator
        self._operators = Counter(
            f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in proto.graph.node
        )
        self._precision = precision
        self._wide = precision == "fp64"
        self._names = [output.name for output in proto.graph.output]

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        if self._wide:
            feeds = {name: _widen(value) for name, value in feeds.items()}
        # Infinities and NaN are results, as in every other runtime.
        with runtime_errors(f"{self._name} failed while running"), np.errstate(all="ignore"):
            names = self._names if output_names is None else list(output_names)
            results = self._evaluator.run(names, dict(feeds))
        # The evaluator returns an output that is also a feed, a part of one or another output without a copy.
        return list(map(_copy, results))

    def report(self) -> RuntimeReport:
        import onnx

        return RuntimeReport(
            device=cpu_name(),
            precision=self._precision,
            operators={"numpy": dict(self._operators.most_common())},
            versions={"onnx": onnx.__version__, "numpy": np.__version__},
        )


def _corrected() -> list[Any]:
    """Operators whose implementation in ONNX (1.23) rejects a negative axis, more than 64 rows or an early opset, loses
    small probabilities, takes scales by row or by channel for those of another axis, joins the results of a loop along
    their own first axis, never enters a loop without a condition, normalizes a batch by its own mean in an early opset,
    puts an optional's value into a list, which others read as it is, or is slow: NumPy multiplies transposed stacks of
    matrices without BLAS, and ``erf`` is a function of one number."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import (
        op_batch_normalization,
        op_conv_integer,
        op_dequantize_linear,
        op_log_softmax,
        op_loop,
        op_matmul_integer,
        op_qlinear_conv,
        op_qlinear_matmul,
    )

    try:
        from scipy.special import erf
    except ImportError:
        erf = np.vectorize(math.erf, otypes=[np.float64])

    class GatherElements(OpRun):
        def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
            axis %= data.ndim
            near = (slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))
            return (np.take_along_axis(data[tuple(near)], indices, axis),)

    class MatMul(OpRun):
        def _run(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
            if a.ndim > 2 and b.ndim == 2:
                product = np.matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
            else:
                product = np.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b))
            return (product.astype(a.dtype, copy=False),)

    class Erf(OpRun):
        def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
            return (np.asarray(erf(x)).astype(x.dtype, copy=False),)

    class LogSoftmax(op_log_softmax.LogSoftmax):
        def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
            if not x.size:
                return (x,)
            over = self.axis if axis is None else axis  # type: ignore[attr-defined]
            shifted = x - x.max(axis=over, keepdims=True)  # the logarithm of the sum, for that of each exponential is
            logarithm = np.log(np.exp(shifted).sum(axis=over, keepdims=True))  # -inf where it is too small
            return ((shifted - logarithm).astype(x.dtype),)

    class Loop(op_loop.Loop):
        body: Any
        _run_body: Any

        def _run(  # type: ignore[override]
            self,
            trips: np.ndarray | None = None,
            condition: np.ndarray | None = None,
            *states: Any,
            context: dict[str, Any] | None = None,
            attributes: Any = None,
            bindings: Any = None,
            **_: Any,
        ) -> tuple[Any, ...]:
            going, number = condition is None or bool(condition), 0
            collected: list[list[np.ndarray]] = [[] for _ in range(self.K)]
            while going and (trips is None or number < trips):
                read = zip(self.body.input_names, (np.array(number), np.array(going), *states), strict=True)
                feeds = {**(context or {}), **dict(read)}
                condition, *results = self._run_body(feeds, attributes=attributes, bindings=bindings)
                states, parts = results[: self.N], results[self.N :]
                for before, part in zip(collected, parts, strict=True):
                    before.append(part)
                going, number = bool(condition), number + 1
            if collected and not number:
                raise ValueError(f"{self.onnx_node.name!r}: a Loop without iterations has results of unknown shape")
            return self._check_and_fix_outputs((*states, *map(np.stack, collected)))

    class BatchNormalization(op_batch_normalization.BatchNormalization_14):
        def _run(self, *inputs: Any, spatial: int = 1, **attributes: Any) -> Any:
            if not spatial:
                raise NotImplementedError("BatchNormalization with `spatial` = 0 is not implemented")
            return super()._run(*inputs, **{"training_mode": 0, **attributes})  # type: ignore[no-untyped-call]

    class Optional(OpRun):
        def _run(self, value: Any = None, **_: Any) -> tuple[Any]:
            return (value,)

        def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
            return res  # may be None

    class DequantizeLinear(op_dequantize_linear.DequantizeLinear_23):
        pass

    class MatMulInteger(op_matmul_integer.MatMulInteger):
        def _run(self, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
            return super()._run(a, b, _by_row(a_zero), b_zero)  # type: ignore[no-untyped-call]

    class QLinearMatMul(op_qlinear_matmul.QLinearMatMul):
        def _run(self, *inputs: Any) -> Any:
            a, b, y = inputs[:3], inputs[3:6], inputs[6:]
            return super()._run(a[0], *map(_by_row, a[1:]), *b, *map(_by_row, y))  # type: ignore[no-untyped-call]

    class ConvInteger(op_conv_integer.ConvInteger):
        def _run(self, *inputs: Any, **attributes: Any) -> Any:
            x, w, x_zero, w_zero = [*inputs, None, None][:4]
            if w_zero is not None:
                w = w.astype(np.int32) - w_zero.reshape(-1, *[1] * (w.ndim - 1))
            return super()._run(x, w, x_zero, None, **attributes)  # type: ignore[no-untyped-call]

    class QLinearConv(op_qlinear_conv.QLinearConv):
        def _run(self, *inputs: Any, **attributes: Any) -> Any:
            x, scale, x_zero, w, w_scale, *others = inputs
            scales = scale * w_scale.reshape(-1, *[1] * (x.ndim - 2))
            return super()._run(x, scales, x_zero, w, np.float32(1), *others, **attributes)  # type: ignore[no-untyped-call]

    return [
        *(GatherElements, MatMul, Erf, LogSoftmax, Loop, BatchNormalization, Optional, DequantizeLinear),
        *(MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv),
    ]


def _by_row(numbers: np.ndarray | None) -> np.ndarray | None:
    """Numbers for each row of a matrix, in the standard a vector, so that they broadcast along it."""
    return numbers[:, None] if numbers is not None and numbers.ndim == 1 and numbers.size > 1 else numbers


def _copy(value: Any) -> Any:
    """A C-contiguous copy, of each array in a sequence; strings become objects, as in every other backend."""
    if isinstance(value, list):
        return list(map(_copy, value))
    if not isinstance(value, np.ndarray):
        return value
    return value.astype(object) if value.dtype.kind == "U" else np.array(value, order="C")


def _precision(proto: onnx.ModelProto) -> str:
    """The types in which a graph's matrices enter products; empty if it has none."""
    from onnx import TensorProto

    names = {
        TensorProto.FLOAT16: "fp16",
        TensorProto.BFLOAT16: "bf16",
        TensorProto.FLOAT: "fp32",
        TensorProto.DOUBLE: "fp64",
    }
    matrices = [tensor for tensor in proto.graph.initializer if len(tensor.dims) > 1]
    stored = {tensor.name: tensor.data_type for tensor in matrices if not tensor.name.endswith(SUFFIX)}
    used = set()
    for node in proto.graph.node:
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        used |= {(stored[name] if to is None else to) for name in node.input if name in stored}
    return "+".join(names[kind] for kind in names if kind in used)


def _widen(value: Any) -> Any:
    narrow = isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16", "float32")
    return value.astype(np.float64) if narrow else value


def _widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every narrower float changed to float64: weights, constants, casts, inputs and outputs."""
    from onnx import TensorProto, numpy_helper

    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)

    def widen_tensor(tensor: onnx.TensorProto) -> None:
        if tensor.data_type in narrow:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))

    def widen_value(info: onnx.ValueInfoProto) -> None:
        if info.type.tensor_type.elem_type in narrow:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE

    def widen_graph(graph: onnx.GraphProto) -> None:
        for initializer in graph.initializer:
            if not initializer.name.endswith(SUFFIX):
                widen_tensor(initializer)
        for info in (*graph.input, *graph.output, *graph.value_info):
            widen_value(info)
        for node in graph.node:
            if any(name.endswith(SUFFIX) for name in node.output):
                continue
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    widen_tensor(attribute.t)
                if attribute.HasField("g"):
                    widen_graph(attribute.g)
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i in narrow:
                    attribute.i = TensorProto.DOUBLE
                if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    floats = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                    widened = numpy_helper.from_array(np.array(floats, np.float64))
                    attribute.Clear()
                    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                    attribute.t.CopyFrom(widened)

    import onnx

    separate(proto)
    widen_graph(proto.graph)
    return proto
