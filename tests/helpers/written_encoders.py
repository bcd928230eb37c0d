"""Encoders of one layer that are written node by node, with what exports do not have: 16 wide, 2 heads."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import exports
import isorun

WIDTH, HEADS, VOCABULARY = 16, 2, 100
LOWEST = float(np.finfo(np.float32).min)

Operand = str | float | int | Sequence[int] | np.ndarray
Change = Callable[[str], str]


class Graph:
    """A graph that grows: each method adds nodes and returns the name of their result."""

    def __init__(self, opset: int = 17) -> None:
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._random = np.random.default_rng(0)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "written", self._inputs, self._outputs, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=9)

    def input(self, name: str, *shape: int | str, kind: int = TensorProto.INT64) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, *shape: int | str) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, value: Any) -> str:
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        self._constants.append(numpy_helper.from_array(array, f"constant_{len(self._constants)}"))
        return self._constants[-1].name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        spread = shape[0] ** -0.5 if scale is None else scale
        return self.constant((self._random.standard_normal(shape) * spread).astype(np.float32))

    def node(self, operator: str, *operands: Operand, outputs: int = 1, **attributes: Any) -> Any:
        """The name of the result; of several, a list."""
        names = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        results = [f"{operator}_{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, names, results, name=results[0], **attributes))
        return results[0] if outputs == 1 else results

    def length(self, ids: str) -> str:
        return str(self.node("Gather", self.node("Shape", ids), 1))

    def places(self, ids: str) -> str:
        return str(self.node("Range", 0, self.length(ids), 1))

    def distances(self, ids: str) -> str:
        """Of the key from the query, (S, S)."""
        places = self.places(ids)
        return str(self.node("Sub", self.node("Unsqueeze", places, [0]), self.node("Unsqueeze", places, [1])))

    def normalized(self, value: str) -> str:
        ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return str(self.node("LayerNormalization", value, ones, zeros, axis=-1))

    def embedded(self, ids: str) -> str:
        return self.normalized(self.node("Gather", self.weight(VOCABULARY, WIDTH, scale=1.0), ids))

    def mask(self, mask: str) -> str:
        """What is added to scores, (B, 1, 1, S)."""
        real = self.node("Cast", self.node("Unsqueeze", mask, [1, 2]), to=TensorProto.FLOAT)
        return str(self.node("Mul", self.node("Sub", 1.0, real), LOWEST))

    def adding(self, value: str) -> Change:
        """A change of scores: another value is added to them."""
        return lambda scores: str(self.node("Add", scores, value))

    def dense(self, value: str, inputs: int, outputs: int) -> str:
        product = self.node("MatMul", value, self.weight(inputs, outputs))
        return str(self.node("Add", product, self.weight(outputs, scale=0.1)))

    def layer(
        self,
        hidden: str,
        on_scores: Change = lambda scores: scores,
        turned: Change = lambda heads: heads,
        *,
        sharpness: float = 1.0,
        by_head: Operand = (0, 0, HEADS, WIDTH // HEADS),
        joined: Operand = (0, 0, WIDTH),
        skipped: str | None = None,
    ) -> str:
        """A layer after hidden states (B, S, 16), or after others that are skipped with a value of another shape."""
        query, key, value = (
            self.node("Transpose", self.node("Reshape", self.dense(hidden, WIDTH, WIDTH), by_head), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        product = self.node("MatMul", turned(query), self.node("Transpose", turned(key), perm=[0, 1, 3, 2]))
        scores = self.node("Mul", product, sharpness * float((WIDTH // HEADS) ** -0.5))
        heads = self.node("MatMul", self.node("Softmax", on_scores(scores), axis=-1), value)
        context = self.node("Reshape", self.node("Transpose", heads, perm=[0, 2, 1, 3]), joined)
        return self.normalized(self.node("Add", skipped or hidden, self.dense(context, WIDTH, WIDTH)))


def begun(opset: int = 17) -> tuple[Graph, str, str]:
    """A graph, and its ids and mask (B, S)."""
    graph = Graph(opset)
    return graph, graph.input("input_ids", "B", "S"), graph.input("attention_mask", "B", "S")


def feeds_of(length: int, rows: int = 5) -> exports.Feeds:
    """Rows without padding, with some on the right, on the left, in between, and one of padding alone."""
    mask = np.ones((5, length), np.int64)
    mask[1, 3:] = mask[2, : length // 2] = mask[3, 1:-1:2] = mask[4] = 0
    ids = np.random.default_rng(length).integers(0, VOCABULARY, mask.shape)
    return {"input_ids": ids[:rows], "attention_mask": mask[:rows]}


def check(
    model: onnx.ModelProto, fed: exports.Feeds, backend: str = "ort-cpu", padding: str = "auto", **more: Any
) -> isorun.Session:
    """Compare a session, which is closed then, with the untouched model: at real tokens where its output is of tokens.

    Args:
        more: ``fused``, the number of fused attentions; ``optimized`` of :func:`exports.run`.
    """
    (expected,) = exports.run(model, fed, optimized=more.get("optimized", True))
    with isorun.Session(model, backend, padding=padding) as session:
        (result,) = session.run(None, fed)
        assert session.provenance.fused.get("SelfAttention", 0) == more.get("fused", ANY)
    real = fed["attention_mask"] != 0 if expected.ndim == 3 else ...
    np.testing.assert_allclose(result[real], expected[real], rtol=1e-4, atol=1e-5)
    return session
