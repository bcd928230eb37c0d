"""A model with known faults of a runtime, and a backend that crashes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import exports
import sites
from isorun import Session
from isorun.reduction import Request, reduce

LONG = """<ir_version: 10, opset_import: ["" : 18]>
    long (float[n, 4] x) => (float[n, 4] y) {
        step = Constant <value_float = 0.5> ()
        a = Add (x, step)  b = Mul (a, step)  c = Tanh (b)  d = Sub (c, step)  e = Abs (d)
        part = Shrink <lambd = 0.5, bias = 0.25> (a)
        f = Add (e, step)  g = Relu (f)  h = Neg (g)  i = Add (h, step)
        y = Add (i, part)
    }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "long.onnx"
    onnx.save(onnx.parser.parse_model(LONG), path)
    return path


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    path = tmp_path / "feeds.npz"
    np.savez(path, x=np.array([[1, -np.inf, np.inf, 3]], np.float32))
    return path


def test_finds_the_operator_of_a_known_fault_in_files_that_show_it(
    isorun: Callable[..., Any], model: Path, feeds: Path, tmp_path: Path
) -> None:
    openvino = pytest.importorskip("openvino")
    output = tmp_path / "small.onnx"
    ran = isorun("parity", model, "--backends", "openvino", "--feeds", feeds, "--reduce", output, "--json")
    assert ran.code == 1
    (node,) = ran.json["reduction"]["nodes"]
    assert node.startswith("Shrink")
    assert ran.json["reduction"]["kind"] == "differs"
    assert any("Shrink" in known for known in ran.json["reduction"]["known"])
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Shrink"]
    with np.load(tmp_path / "small.feeds.npz") as inputs, np.load(tmp_path / "small.expected.npz") as expected:
        inputs, (wanted,) = dict(inputs), expected.values()
    with Session(output, "reference") as reference:
        np.testing.assert_allclose(reference.run(None, inputs)[0], wanted, rtol=1e-6)
    (result,) = openvino.Core().compile_model(str(output), "CPU")(inputs).values()
    assert not np.allclose(result, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("node", "code"), [("LpNormalization <axis = -1, p = 1> (x)", 3), ("Softmax <axis = 1> (x)", 0)]
)
def test_the_known_faults_of_the_reference_are_not_blamed_on_the_backend(
    isorun: Callable[..., Any], tmp_path: Path, node: str, code: int
) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 12]> long (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = {node} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "small.onnx")
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, x=np.linspace(-2, 3, 24, dtype=np.float32).reshape(2, 3, 4))
    output = tmp_path / "reduced.onnx"
    ran = isorun("parity", tmp_path / "small.onnx", "--backends", "ort-cpu", "--feeds", feeds, "--reduce", output)
    assert ran.code == code
    assert ("--against" in ran.err) == bool(code)
    assert not output.exists()


def test_feeds_are_not_overwritten(isorun: Callable[..., Any], model: Path, feeds: Path, tmp_path: Path) -> None:
    own = feeds.rename(tmp_path / "small.feeds.npz")
    kept = own.read_bytes()
    ran = isorun("parity", model, "--backends", "openvino", "--feeds", own, "--reduce", tmp_path / "small.onnx")
    assert (ran.code, "would be overwritten" in ran.err) == (2, True)
    assert own.read_bytes() == kept


def test_finds_a_fault_behind_a_fused_encoder(isorun: Callable[..., Any], tmp_path: Path) -> None:
    """With the reference, which computes in fp64: a part of the fused graph may have none of its operators."""
    proto = exports.proto("bert-torchscript17-eager")
    hidden = proto.graph.output[0].name
    for name, value in (("bound", 2.0), ("endless", np.inf)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    proto.graph.node.extend(
        [
            onnx.helper.make_node("Greater", [hidden, "bound"], ["is_large"]),
            onnx.helper.make_node("Where", ["is_large", "endless", hidden], ["infinite"]),
            onnx.helper.make_node("Shrink", ["infinite"], ["shrunk"], lambd=0.0),
        ]
    )
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("shrunk", onnx.TensorProto.FLOAT, [None] * 3))
    onnx.save(proto, tmp_path / "encoder.onnx")
    ran = isorun(
        "parity", tmp_path / "encoder.onnx", "--backends", "openvino", "--reduce", tmp_path / "small.onnx", "--json"
    )
    assert ran.code == 1, ran.err
    assert [node.split()[0] for node in ran.json["reduction"]["nodes"]] == ["Shrink"]


def test_a_model_that_is_right_is_not_reduced(isorun: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.onnx"
    ran = isorun("parity", model, "--backends", "ort-cpu", "--batch", 2, "--reduce", output)
    assert ran.code == 0
    assert "nothing to reduce" in ran.out
    assert not output.exists()


def test_options_without_effect_are_rejected(isorun: Callable[..., Any], model: Path, feeds: Path) -> None:
    small = model.with_name("small.onnx")
    assert isorun("parity", model, "--backends", "openvino,ort-cpu", "--reduce", small).code == 2
    assert isorun("parity", model, "--backends", "openvino", "--feeds", feeds, "--batch", 2).code == 2


CRASHES = """
import dataclasses, os
import onnx
from isorun_backends.reference import Reference

class Crashes(Reference):
    "Aborts the process on a model with Neg and Relu, and fails on Exp."
    name = "crashes"
    capabilities = dataclasses.replace(Reference.capabilities, faults="")

    def compile(self, model, config):
        graph = onnx.load(model.path).graph
        operators = [node.op_type for node in graph.node]
        if {"Neg", "Relu"} <= set(operators):
            os.abort()
        if "Exp" in operators:
            raise ValueError("no exponentials today")
        return super().compile(model, config)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("body", "kind", "reason", "left"),
    [
        ("a = Relu (x)  b = Neg (a)  y = Tanh (b)", "ends the process", "SIGABRT", ["Relu", "Neg"]),
        ("a = Relu (x)  b = Exp (a)  y = Tanh (b)", "fails", "no exponentials today", ["Exp"]),
    ],
    ids=["crash", "error"],
)
def test_finds_what_does_not_run(
    body: str, kind: str, reason: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, output = tmp_path / "three.onnx", tmp_path / "small.onnx"
    text = f"three (float[n, 4] x) => (float[n, 4] y) {{ {body} }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'), model)
    sites.install(tmp_path / "site", "crashes-dist", "1.0", {"crashes.py": CRASHES}, {"crashes": "crashes:Crashes"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    request = Request(str(model), "crashes", "reference")
    reduction = reduce(request, {"given": {"x": np.ones((1, 4), np.float32)}}, {}, output)
    assert reduction is not None
    assert (reduction.kind, reduction.known) == (kind, ())
    assert reason in reduction.reason
    assert [node.op_type for node in onnx.load(output).graph.node] == left


def test_wrong_numbers_are_not_reduced_to_another_shape(
    isorun: Callable[..., Any], feeds: Path, tmp_path: Path
) -> None:
    """OpenVINO returns a constant without elements as a scalar, which is no part of what differs."""
    path, output = tmp_path / "empty.onnx", tmp_path / "small.onnx"
    text = LONG.replace("step = Constant", "none = Constant <value = int64[0] {}> ()  step = Constant", 1)
    onnx.save(onnx.parser.parse_model(text), path)
    ran = isorun("parity", path, "--backends", "openvino", "--feeds", feeds, "--reduce", output, "--json")
    assert ran.json["reduction"]["kind"] == "differs"
    assert [node.split()[0] for node in ran.json["reduction"]["nodes"]] == ["Shrink"]


def test_another_shape_is_a_kind_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g () => (int64[0] y) { y = Constant <value = int64[0] {}> () }'
        ),
        path,
    )
    reduction = reduce(Request(str(path), "openvino", "ort-cpu"), {"one": {}}, {}, tmp_path / "small.onnx")
    assert reduction is not None
    assert reduction.kind == "returns other shapes"
