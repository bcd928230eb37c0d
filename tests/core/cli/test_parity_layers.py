"""A backend with a wrong weight in one layer: `isorun parity --layers` must name it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

import onnx_text
import tiny
from isorun.models import checkpoint, presets
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun_backends.onnxruntime.cpu import OrtCpu

Plant = Callable[[str], None]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """Registers the backend `planted`: ort-cpu, with one element of a weight off by 0.1."""

    def register(weight: str) -> None:
        class Planted(OrtCpu):
            def compile(self, model: Any, config: Any) -> Any:
                proto = onnx.load(model.path)
                (tensor,) = (initializer for initializer in proto.graph.initializer if initializer.name == weight)
                values = numpy_helper.to_array(tensor).copy()
                values.flat[3] += 0.1
                tensor.CopyFrom(numpy_helper.from_array(values, weight))
                path = tmp_path / "planted.onnx"
                onnx.save(proto, path, save_as_external_data=True, location="planted.bin")
                return super().compile(replace(model, path=path), config)

        registry.register("planted", Planted)

    yield register
    if "planted" in registry.registered():
        registry.unregister("planted")


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    config = tiny.CONFIG | {"num_hidden_layers": 3}
    assert (
        checkpoint.build(
            tiny.write_checkpoint(folder / "checkpoint", tiny.weights(config), config=config), folder / "bert.onnx"
        )
        == []
    )
    return folder / "bert.onnx"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("weight", "layer", "operator", "node"),
    [
        ("embeddings.LayerNorm.bias", None, "EmbedLayerNormalization", "embeddings"),
        ("encoder.layer.0.attention.self.qkv.bias", 0, "SelfAttention", "layer.0.attention"),
        ("encoder.layer.1.intermediate.dense.bias", 1, "BiasGelu", "layer.1.activation"),
        ("encoder.layer.2.output.dense.bias", 2, "SkipLayerNormalization", "layer.2"),
        ("pooler.dense.bias", None, None, None),
    ],
)
def test_names_the_operator_with_a_wrong_weight(
    isorun: Callable[..., Any],
    three_layers: Path,
    plant: Plant,
    weight: str,
    layer: int | None,
    operator: str | None,
    node: str | None,
) -> None:
    plant(weight)
    arguments = ("parity", three_layers, "--backends", "ort-cpu,planted", "--against", "ort-cpu", "--layers")
    ran = isorun(*arguments, "--json")
    assert ran.code == 1
    departures = ran.json["departures"]
    assert departures["ort-cpu"] is None
    departure = departures["planted"]
    assert (departure["layer"], departure["operator"], departure["node"]) == (layer, operator, node)
    assert departure["output"] == ("pooler_output" if operator is None else f"{node}:0")
    assert departure["reasons"]


def test_prints_the_first_departure(isorun: Callable[..., Any], three_layers: Path, plant: Plant) -> None:
    plant("encoder.layer.1.intermediate.dense.bias")
    ran = isorun("parity", three_layers, "--backends", "planted", "--against", "ort-cpu", "--layers")
    assert ran.code == 1
    assert "planted: differs at layer 1, BiasGelu layer.1.activation (mask: none): max_rel is" in ran.out


def test_a_correct_backend_departs_nowhere(isorun: Callable[..., Any], three_layers: Path) -> None:
    ran = isorun("parity", three_layers, "--backends", "openvino", "--layers", "--json")
    assert (ran.code, ran.json["departures"]) == (0, {"openvino": None}), ran.err


def test_rejects_a_model_without_layers(isorun: Callable[..., Any], tmp_path: Path) -> None:
    model = onnx_text.graph("f (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    onnx.save(model, tmp_path / "relu.onnx")
    ran = isorun("parity", tmp_path / "relu.onnx", "--backends", "ort-cpu", "--layers")
    assert (ran.code, "no fused operator" in ran.err) == (3, True), ran.err


@pytest.mark.long
def test_names_layer_7_of_bert_base(isorun: Callable[..., Any], plant: Plant) -> None:
    plant("encoder.layer.7.attention.output.dense.bias")
    model = presets.build("bert-base", 0, Cache())
    ran = isorun("parity", model, "--backends", "planted", "--against", "ort-cpu", "--layers", "--json")
    assert ran.json["departures"]["planted"]["node"] == "layer.7.attended"
