"""The backend ``template``. ENGINE marks each place where your engine replaces ONNX's reference evaluator.

Import the engine inside functions only, so that ``isorun backends`` can list the backend where it is not installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import (
    Backend,
    Capabilities,
    CompileConfig,
    Executable,
    Feeds,
    LoweredModel,
    RuntimeReport,
    UnsupportedModel,
    cpu_name,
    package_version,
    runtime_errors,
)

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator  # ENGINE


class Template(Backend):
    """Models in ONNX's reference evaluator."""

    contract = 2  # the version of isorun's plugin contract that this is written for

    # ENGINE: declare what your engine can do and the conformance checks can prove. The defaults declare the minimum.
    capabilities = Capabilities(
        dialects=("primitive",),
        precisions=("fp32",),
        devices=("cpu",),
        dynamic_shapes=True,
        package="onnx",
        requirement="onnx",
        reports=("placement",),
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        """Load a model. ``config`` requests only what the capabilities declare."""
        assert config.precision == "fp32"  # ENGINE: do what ``config`` requests or raise; never fall back
        if model.info.opset < 13:  # ENGINE: models that are no encoders arrive in their own opsets
            raise UnsupportedModel(f"{self.name} supports opset 13 and later, got {model.info.opset}")
        with runtime_errors(f"{self.name} cannot load {model.path}", _translate):
            from onnx.reference import ReferenceEvaluator  # ENGINE

            evaluator = ReferenceEvaluator(str(model.path))
        return TemplateExecutable(self.name, evaluator)


class TemplateExecutable(Executable):
    """A loaded model."""

    def __init__(self, name: str, evaluator: ReferenceEvaluator) -> None:
        self._name = name
        self._evaluator = evaluator

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Run once, on validated feeds. The caller owns the outputs: no later run may change them."""
        with runtime_errors(f"{self._name} failed while running"), np.errstate(all="ignore"):
            results = self._evaluator.run(list(output_names), dict(feeds))  # ENGINE
        return [_owned(result) for result in results]

    def report(self) -> RuntimeReport:
        """What the engine reports that it did. Omit what it does not report; do not guess."""
        operators = Counter(node.op_type for node in self._evaluator.proto_.graph.node)  # ENGINE
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32",
            operators={"cpu": dict(operators)},
            versions={"onnx": package_version("onnx") or "unknown"},
        )

    def close(self) -> None:
        """Release all resources. Called exactly once."""
        del self._evaluator


def _owned(result: Any) -> Any:
    """A copy in C order; strings are objects, as in every backend. A sequence is a list, an empty optional ``None``."""
    if isinstance(result, list | None):
        return result and [_owned(item) for item in result]
    array = np.array(result, order="C")
    return array.astype(object) if array.dtype.kind == "U" else array


def _translate(error: Exception) -> UnsupportedModel | None:
    """Translate an error of the engine; ``None`` for BackendFailed."""
    if isinstance(error, NotImplementedError):  # ENGINE: how your engine reports an unknown operator
        return UnsupportedModel(f"ONNX's reference evaluator does not implement an operator: {error}")
    return None
