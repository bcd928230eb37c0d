"""The backend ``deepsparse``: Neural Magic's engine for CPUs, which skips weights that are zero."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from isorun.plugin import (
    Availability,
    Backend,
    Capabilities,
    CompileConfig,
    Executable,
    Feeds,
    InvalidFeeds,
    LoweredModel,
    RuntimeReport,
    StaticShapes,
    UnsupportedModel,
    cpu_flags,
    cpu_name,
    package_version,
    runtime_errors,
)
from isorun_deepsparse import engine
from isorun_deepsparse.prepare import integer_products, private_copy

_REMEDY = (
    "Install it in an environment of its own, with Python 3.11: "
    "isorun env create deepsparse --python 3.11 --install isorun-deepsparse"
)
_UNKNOWN_OPERATOR = r"(\S+?)\(-?\d+\) is not a registered function/op|No Op registered for (\S+)"
_NUMBER = re.compile(r"(-[\d.]+%)?[_ ]\d+$")  # the end of a layer's name: its position, and its share of zeros
_REFUSED_TYPES = ("tensor(float16)", "tensor(bfloat16)", "tensor(string)")  # of inputs; the first run fails
_OTHER = "Naive Subgraph"  # runs in the ONNX Runtime inside DeepSparse


class DeepSparse(Backend):
    """DeepSparse in fp32, for one shape at a time."""

    contract = 2
    capabilities = Capabilities(
        dialects=("primitive",),
        refused={
            "int8": "it computes isorun's int8, products of dequantized integers, in fp32. A model with integer "
            "operators, as SparseML writes it, runs unchanged",
            "bf16": "it has no setting for it",
            "fp16": "it has no setting for it",
        },
        static_shapes=StaticShapes(),
        sets_threads=True,
        package="deepsparse",
        requirement="deepsparse==1.8.0",
        reports=("placement",),
    )

    def installed(self) -> Availability:
        availability = super().installed()
        if not availability.ok:
            return Availability(False, availability.reason, _REMEDY)
        if (flags := cpu_flags()) and not flags & {"avx2", "asimd"}:
            return Availability(
                False, "this processor has neither AVX2 nor Advanced SIMD", "Use another backend, such as ort-cpu."
            )
        return availability

    def compile(self, model: LoweredModel, config: CompileConfig) -> DeepSparseExecutable:
        assert config.threads is not None
        for spec in model.info.inputs:
            if spec.type in _REFUSED_TYPES:
                raise UnsupportedModel(f"{self.name} does not support {spec.name!r}, of type {spec.type}")
        return DeepSparseExecutable(self.name, model, config.threads)


class DeepSparseExecutable(Executable):
    """An engine.

    Args:
        name: the backend's name.
        model: the lowered model.
        threads: the number of threads of a run.
    """

    def __init__(self, name: str, model: LoweredModel, threads: int) -> None:
        self._name, self._model, self._threads = name, model, threads
        with runtime_errors(f"{name} cannot load {model.path}", self._translate), private_copy(model.path) as path:
            self._engine = engine.compile_model(path, threads)
            self._supported = self._engine.fraction_of_supported_ops
            self._inputs = dict(zip(self._engine.input_names, self._engine.input_shapes, strict=True))
            self._outputs = {output: index for index, output in enumerate(self._engine.output_names)}

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        inputs = [np.require(feeds[name], requirements=["C", "A"]) for name in self._inputs]
        if len(feeds) > len(inputs):
            fixed = sorted(feeds.keys() - self._inputs.keys())
            raise InvalidFeeds(f"{self._name} always uses the model's default for input {fixed[0]!r}. Omit that feed")
        with runtime_errors(f"{self._name} failed while running"):
            results = self._engine.run(inputs, val_inp=False)
        names = [spec.name for spec in self._model.info.outputs] if output_names is None else output_names
        return [results[self._outputs[name]] for name in names]

    def report(self) -> RuntimeReport:
        """From DeepSparse's analysis, for which the model is compiled again."""
        zeros = [
            np.zeros(shape, spec.dtype)
            for name, shape in self._inputs.items()
            for spec in self._model.info.inputs
            if spec.name == name
        ]
        with (
            runtime_errors(f"{self._name} cannot analyze the model"),
            private_copy(self._model.path) as path,
        ):
            layers = engine.layers(path, self._threads, zeros)
            integers = integer_products(path)
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32+int8" if integers & _nodes(layers) else "fp32",
            operators=operators(layers),
            versions={"deepsparse": package_version("deepsparse") or "unknown"},
            details={"supported_operators": self._supported, "sparse_layers": sparse_layers(layers)},
        )

    def _translate(self, error: Exception) -> UnsupportedModel | None:
        match = re.search(_UNKNOWN_OPERATOR, str(error))
        if match is None:
            return None
        missing = (match[1] or match[2]).rpartition(":")[2]
        return UnsupportedModel(f"{self._name} lacks the operator {missing} of {self._model.path}", [missing])

    def close(self) -> None:
        del self._engine


def operators(layers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The number of layers of each kind, by what runs them.

    Args:
        layers: as DeepSparse describes them.
    """
    places: dict[str, Counter[str]] = {}
    for layer in layers:
        kind = _NUMBER.sub("", layer["name"])
        place = "ONNX Runtime, inside DeepSparse" if kind == _OTHER else "DeepSparse"
        places.setdefault(place, Counter())[kind] += 1
    return {place: dict(counts.most_common()) for place, counts in places.items()}


def sparse_layers(layers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The layers that skip zeros, with the share of zeros of each.

    DeepSparse does not report this for layers that it fuses with others (a ``pyramid``).

    Args:
        layers: as DeepSparse describes them.
    """
    return {
        layer["canonical_name"]: round(float(layer["kernel_sparsity"]), 4)
        for layer in layers
        if layer["name"].startswith("ks_")  # kernel sparsity: the prefix of kernels that skip zeros
    }


def _nodes(layers: Iterable[Mapping[str, Any]]) -> set[str]:
    """The outputs of the graph's nodes that DeepSparse computes."""
    return {name for layer in layers for name in layer["canonical_name"].split(",")}
