"""The backend ``template``. ONNX's reference evaluator stands where your engine will: look for ENGINE.

Nothing of the engine is imported at the top, so that ``isorun backends`` can describe a backend that is not installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import UnsupportedModel
from isorun.plugin.backend import Backend, Executable, runtime_errors
from isorun.system.hardware import cpu_name
from isorun.system.packages import package_version
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator  # ENGINE


class Template(Backend):
    """Models in ONNX's reference evaluator."""

    # ENGINE: what yours can do. The defaults promise the least; declare what you can prove.
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
        """Load a model. ``config`` asks for nothing that the capabilities do not declare."""
        assert config.precision == "fp32"  # ENGINE: do as ``config`` asks, or raise; never something else
        with runtime_errors(f"{self.name} cannot load {model.path}", _recognise):
            from onnx.reference import ReferenceEvaluator  # ENGINE

            evaluator = ReferenceEvaluator(str(model.path))
        return TemplateExecutable(self.name, evaluator)


class TemplateExecutable(Executable):
    """A loaded model."""

    def __init__(self, name: str, evaluator: ReferenceEvaluator) -> None:
        self._name = name
        self._evaluator = evaluator

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        """Run once, on feeds that were checked. The results are the caller's: no later run changes them."""
        wanted = None if output_names is None else list(output_names)
        with runtime_errors(f"{self._name} failed while running"), np.errstate(all="ignore"):
            results = self._evaluator.run(wanted, dict(feeds))  # ENGINE
        return [np.array(result) for result in results]

    def report(self) -> RuntimeReport:
        """What the engine says that it did. What it does not tell is left out, not guessed."""
        operators = Counter(node.op_type for node in self._evaluator.proto_.graph.node)  # ENGINE
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32",
            operators={"numpy": dict(operators)},
            versions={"onnx": package_version("onnx") or "unknown"},
        )

    def close(self) -> None:
        """Let go of everything."""
        del self._evaluator


def _recognise(error: Exception) -> UnsupportedModel | None:
    """What an error of the engine is known to mean; ``None`` where it may mean anything."""
    if isinstance(error, NotImplementedError):  # ENGINE: how yours says that it lacks an operator
        return UnsupportedModel(f"ONNX's reference evaluator lacks an operator: {error}")
    return None
