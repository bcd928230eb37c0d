"""Models in 8 bits, in forms that other tools write.

SparseML's, in which oBERT's checkpoints are published, from what its exporter documents of its transforms:

- a dense layer: ``QuantizeLinear``, ``MatMulInteger``, ``Add`` of a bias in int32, ``Cast``, ``Mul`` by both scales;
- the products of attention: ``QLinearMatMul`` between ``QuantizeLinear`` and ``DequantizeLinear``;
- embeddings: ``Gather`` from a table of uint8, ``DequantizeLinear``.

There, scales are a tensor's own: activations asymmetric in uint8, weights symmetric, in int8, or in uint8 around 128 as
the earlier exports have them.

NNCF's: a Q and a DQ before each dense layer, and the same behind its weights, which stay in fp32; a scale a column.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, np.ndarray]
Scale = tuple[float, int]


def sparseml(model: onnx.ModelProto, feeds: Sequence[Feeds], weights: type[np.int8 | np.uint8]) -> onnx.ModelProto:
    """The same model in SparseML's form.

    Args:
        model: an export whose dense layers are ``MatMul``. It stays as it is.
        feeds: what activations are measured on.
        weights: what weights are stored in.
    """
    return _SparseML(model, feeds, weights).write()


def nncf(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """The same model in NNCF's form. Arguments as for :func:`sparseml`."""
    return _NNCF(model, feeds).write()


class _Writer(ABC):
    """What is done with each dense layer, product of activations and embedding; by default nothing."""

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feeds]) -> None:
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._graph = self._model.graph
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in self._graph.initializer}
        self._seen = self._ranges(feeds)
        self._quantized: dict[str, str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def _ranges(self, feeds: Sequence[Feeds]) -> dict[str, Scale]:
        """The scale and zero point of whatever a product takes or gives."""
        wanted = dict.fromkeys(
            name
            for node in self._graph.node
            if node.op_type == "MatMul"
            for name in (*node.input, *node.output)
            if name not in self._constants
        )
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self._model)
        known = {output.name for output in tapped.graph.output}
        tapped.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted if name not in known
        )
        session = onnxruntime.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
        runs = [session.run(list(wanted), inputs) for inputs in feeds]
        return {name: _scale(np.concatenate([run[at].ravel() for run in runs])) for at, name in enumerate(wanted)}

    def write(self) -> onnx.ModelProto:
        dropped: set[str] = set()
        for node in self._graph.node:
            if node.output[0] in dropped:
                continue
            if node.op_type == "MatMul" and node.input[1] in self._constants:
                dropped |= self._dense(node)
            elif node.op_type == "MatMul":
                self._product(node)
            elif node.op_type == "Gather" and self._is_table(node.input[0]):
                self._embedding(node)
            else:
                self._nodes.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del self._graph.node[:]
        self._graph.node.extend(kept)
        used = {name for node in self._graph.node for name in node.input}
        unused = [tensor for tensor in self._graph.initializer if tensor.name not in used]
        for unread in unused:
            self._graph.initializer.remove(unread)
        onnx.checker.check_model(self._model, full_check=True)
        return self._model

    @abstractmethod
    def _dense(self, node: onnx.NodeProto) -> set[str]:
        """Write a dense layer. Returns the outputs of what it replaces besides."""

    def _product(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)

    def _embedding(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)

    def _is_table(self, name: str) -> bool:
        table = self._constants.get(name)
        return table is not None and table.ndim == 2 and table.dtype == np.float32

    def _activation(self, name: str) -> str:
        if name not in self._quantized:
            self._quantized[name] = f"{name}.quantized_input"
            self._add("QuantizeLinear", [name, *self._parameters(name)], self._quantized[name])
        return self._quantized[name]

    def _parameters(self, name: str) -> list[str]:
        scale, zero = self._seen[name]
        return [
            self._constant(f"{name}.scale", np.float32(scale)),
            self._constant(f"{name}.zero_point", np.uint8(zero)),
        ]

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        if name not in self._constants:
            self._constants[name] = np.asarray(value)
            self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, kind: str, inputs: Sequence[str], output: str, **attributes: int) -> None:
        self._nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))


class _SparseML(_Writer):
    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feeds], weights: type[np.int8 | np.uint8]) -> None:
        super().__init__(model, feeds)
        self._weights = weights

    def _dense(self, node: onnx.NodeProto) -> set[str]:
        """The outputs of what it replaces besides."""
        read, weight = node.input[0], self._constants[node.input[1]]
        scale, zero = self._seen[read]
        weight_scale = float(np.abs(weight).max()) / 127
        middle = 128 if self._weights is np.uint8 else 0
        integers = (np.clip(np.rint(weight / weight_scale), -127, 127) + middle).astype(self._weights)
        at = node.output[0]
        inputs = [self._activation(read), self._constant(f"{at}.weight_quantized", integers)]
        inputs += [
            self._constant(f"{read}.zero_point", np.uint8(zero)),
            self._constant(f"{at}.weight_zero_point", self._weights(middle)),
        ]
        self._add("MatMulInteger", inputs, f"{at}.integers")
        total, bias_add = f"{at}.integers", self._bias(node)
        if bias_add is not None:
            (bias,) = (self._constants[name] for name in bias_add.input if name in self._constants)
            scaled = np.rint(bias / (scale * weight_scale)).astype(np.int32)
            self._add("Add", [total, self._constant(f"{at}.bias_quantized", scaled)], f"{at}.biased")
            total, at = f"{at}.biased", bias_add.output[0]
        self._add("Cast", [total], f"{total}.cast", to=TensorProto.FLOAT)
        self._add("Mul", [f"{total}.cast", self._constant(f"{total}.scale", np.float32(scale * weight_scale))], at)
        return {at}

    def _bias(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        readers = [reader for reader in self._graph.node if node.output[0] in reader.input]
        if len(readers) == 1 and readers[0].op_type == "Add":
            others = [name for name in readers[0].input if name in self._constants]
            if others and self._constants[others[0]].ndim == 1:
                return readers[0]
        return None

    def _product(self, node: onnx.NodeProto) -> None:
        inputs = []
        for name in node.input:
            inputs += [self._activation(name), f"{name}.scale", f"{name}.zero_point"]
        at = node.output[0]
        inputs += self._parameters(at)
        self._add("QLinearMatMul", inputs, f"{at}.quantized")
        self._add("DequantizeLinear", [f"{at}.quantized", *self._parameters(at)], at)

    def _embedding(self, node: onnx.NodeProto) -> None:
        table, at = self._constants[node.input[0]], node.output[0]
        scale, zero = _scale(table)
        rows = self._constant(f"{at}.table_quantized", np.clip(np.rint(table / scale) + zero, 0, 255).astype(np.uint8))
        self._add("Gather", [rows, node.input[1]], f"{at}.row")
        parameters = [self._constant(f"{at}.scale", np.float32(scale))]
        parameters.append(self._constant(f"{at}.zero_point", np.uint8(zero)))
        self._add("DequantizeLinear", [f"{at}.row", *parameters], at)


class _NNCF(_Writer):
    def _dense(self, node: onnx.NodeProto) -> set[str]:
        read, name = node.input
        weight = self._constants[name]
        parameters = [
            self._constant(f"{name}.scale", (np.abs(weight).max(axis=0) / 127 + 1e-9).astype(np.float32)),
            self._constant(f"{name}.zero_point", np.zeros(weight.shape[1], np.int8)),
        ]
        quantized = self._activation(read)
        at = node.output[0]
        self._add("DequantizeLinear", [quantized, *self._parameters(read)], f"{at}.read")
        self._add("QuantizeLinear", [name, *parameters], f"{at}.weight", axis=1)
        self._add("DequantizeLinear", [f"{at}.weight", *parameters], f"{at}.weight_read", axis=1)
        self._add("MatMul", [f"{at}.read", f"{at}.weight_read"], at)
        return set()


def _scale(values: np.ndarray) -> Scale:
    least, most = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = max(most - least, 1e-9) / 255
    return scale, round(-least / scale)
