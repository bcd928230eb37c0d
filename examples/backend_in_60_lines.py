"""A backend, registered by the program that uses it: python backend_in_60_lines.py MODEL.onnx

It runs models in ONNX's reference evaluator: replace three lines with your engine's. As a plugin of its own, with an
entry point and the conformance checks, ``isorun plugin new`` writes it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

import isorun
from isorun import plugin
from isorun.plugin.registry import register


class Evaluator(plugin.Backend):
    """Models in ONNX's reference evaluator."""

    contract = 2
    # The defaults declare the minimum: a request for anything else is refused before this class sees it.
    capabilities = plugin.Capabilities(dialects=("primitive",), dynamic_shapes=True)

    def compile(self, model: plugin.LoweredModel, config: plugin.CompileConfig) -> plugin.Executable:
        """Load a model: a file in a dialect that the backend accepts."""
        assert config.precision == "fp32"  # nothing else is declared
        if model.info.opset < 13:  # the evaluator computes Softmax as that of opset 13
            raise plugin.UnsupportedModel(f"{self.name} supports opset 13 and later, got {model.info.opset}")
        return Loaded(ReferenceEvaluator(str(model.path)))  # your engine


class Loaded(plugin.Executable):
    """A loaded model."""

    def __init__(self, engine: ReferenceEvaluator) -> None:
        self._engine = engine

    def run(self, output_names: Sequence[str], feeds: plugin.Feeds) -> list[Any]:
        """Run once, on feeds that were validated; the caller owns the outputs."""
        return [np.array(output) for output in self._engine.run(list(output_names), dict(feeds))]  # your engine

    def report(self) -> plugin.RuntimeReport:
        """What the engine says that it runs, for ``session.provenance``."""
        operators = Counter(node.op_type for node in self._engine.proto_.graph.node)  # your engine
        return plugin.RuntimeReport(
            device=plugin.cpu_name(), precision="fp32", operators={"cpu": dict(operators)}, versions={}
        )


def main(model: str) -> None:
    register("evaluator", Evaluator)
    outputs = {}
    for backend in ("evaluator", "ort-cpu"):
        with isorun.Session(model, backend) as session:
            feeds = {spec.name: np.ones((2, 8), np.int64) for spec in session.get_inputs()}
            outputs[backend] = session.run(None, feeds)
            print(session.provenance, end="\n\n")
    pairs = zip(*outputs.values(), strict=True)
    print("largest difference:", max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
