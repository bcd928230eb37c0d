"""A model whose structure is not valid is refused when it is read, by whatever entry it comes in."""

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

import exports
import isorun
from isorun.errors import InvalidModel
from isorun.graph import fuse
from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator
from isorun.graph.io import files, structure
from isorun.graph.ops.inline import InlinePass

HEADER = '<ir_version: 10, opset_import: ["" : 17, "f" : 1]>'


def parsed(text: str) -> onnx.ModelProto:
    """A model from ONNX's text form."""
    return onnx.parser.parse_model(f"{HEADER}\n{text}")


def refusals(proto: onnx.ModelProto) -> list[str]:
    """Why a model is refused where it is read, and where it is fused."""
    with pytest.raises(InvalidModel) as read:
        files.parse(proto.SerializeToString(), "the model")
    with pytest.raises(InvalidModel) as fused:
        fuse(proto)
    return [str(read.value), str(fused.value)]


IF = """g (bool c, float[N] x) => (float[N] y) {{
    y = If (c) <then_branch = t () => (float[N] a) {{ {} }}, else_branch = e () => (float[N] b) {{ b = Neg (x) }}>
}}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[N] x) => (float[N] y) { a = Add (x, y)  y = Neg (a) }", "cycle"),
        ("g (float[N] x) => (float[N] y) { y = Add (x, y) }", "cycle"),
        ("g (float[N] x) => (float[N] y) { y = Add (x, z) }", "'z'"),
        ("g (float[N] x) => (float[N] y) { z = Neg (x) }", "output 'y'"),
        ("g (float[N] x) => (float[N] y) { y = Neg (x)  y = Abs (x) }", "two values .* 'y'"),
        ("g (float[N] x) => (float[N] x) { x = Neg (x) }", "two values .* 'x'"),
        (f"g (float[{2**40}] x) => (float[N] y) {{ y = Neg (x) }}", "'x' with 1,099,511,627,776 elements"),
        (IF.format("a = Add (x, y)"), "cycle"),
        (IF.format("a = Add (x, z)"), "'z'"),
        (IF.format("d = Add (x, a)  a = Neg (d)"), "cycle"),
    ],
)
def test_rejects_an_invalid_graph(text, message):
    assert all(re.search(message, reason) for reason in refusals(parsed(text)))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (["F (x) => (y) { a = Add (x, y)  y = Neg (a) }"], "function f.F.*cycle"),
        (["F (x) => (y) { y = f.F (x) }"], "calls itself"),
        (["F (x) => (y) { y = f.G (x) }", "G (x) => (y) { y = f.F (x) }"], "calls itself"),
        (["F (x) => (y) { y = Neg (x) }", "F (x) => (y) { y = Abs (x) }"], "f.F twice"),
    ],
)
def test_rejects_invalid_functions(functions, message):
    bodies = [f'<opset_import: ["" : 17, "f" : 1], domain: "f"> {function}' for function in functions]
    model = parsed("\n".join(["g (float[N] x) => (float[N] y) { y = f.F (x) }", *bodies]))
    assert all(re.search(message, reason) for reason in refusals(model))


def doubling(depth: int) -> onnx.ModelProto:
    """A model of a few nodes that expand to 2^depth."""
    model = parsed("g (float[N] x) => (float[N] y) { y = f.F0 (x) }")
    for level in range(depth):
        kind, domain = (f"F{level + 1}", "f") if level + 1 < depth else ("Neg", "")
        nodes = [onnx.helper.make_node(kind, [a], [b], domain=domain) for a, b in (("x", "h"), ("h", "y"))]
        model.functions.append(onnx.helper.make_function("f", f"F{level}", ["x"], ["y"], nodes, model.opset_import))
    return model


def test_rejects_an_exponential_expansion_without_expanding_it():
    message = r"expands to 1,099,511,627,776 nodes.*f\.F0.*at most 100,000"
    assert all(re.search(message, reason) for reason in refusals(doubling(40)))


def test_many_calls_are_inlined_in_linear_time():
    model = ir.serde.deserialize_model(doubling(12))
    start = time.process_time()
    InlinePass()(model)
    assert len(model.graph) == 4096
    assert time.process_time() - start < 5  # a search for each free name takes ten times as long


def test_nodes_out_of_order_are_sorted():
    label = next(iter(exports.manifest()))
    model = exports.proto(label)
    nodes = list(model.graph.node)
    random.Random(0).shuffle(nodes)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(shuffled)
    onnx.checker.check_model(files.parse(shuffled.SerializeToString(), "the model"))
    with isorun.Session(shuffled, "ort-cpu", padding="keep") as session:
        assert exports.agree(label, session.run(None, exports.given(label)))


@pytest.mark.parametrize(
    "node",
    [
        "y = Neg (late)",
        "y = If (c) <then_branch = t () => (a) { a = Neg (late) }, else_branch = e () => (b) { b = Abs (x) }>",
    ],
)
def test_backends_that_run_nodes_in_the_order_of_the_file_get_them_sorted(node: str):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, bool c) => (float[n] y) '
        f"{{ {node} late = Add (x, x) }}"
    )
    with isorun.Session(model, "reference") as session:
        assert session.run(None, {"x": np.ones(2, np.float32), "c": np.array(True)})[0].tolist() == [-2, -2]


def test_evaluation_of_a_cyclic_graph_ends():
    value = ir.Value(name="x")
    negation = ir.node("Neg", [value])
    absolute = ir.node("Abs", negation.outputs)
    negation.replace_input_with(0, absolute.outputs[0])
    with pytest.raises(CannotEvaluate, match="its own result"):
        Evaluator(17, {})(absolute.outputs[0])


def places(descriptor: Descriptor, path: tuple[str, ...] = (), depth: int = 0) -> Iterator[tuple[str, ...]]:
    """The fields that lead from a message to a tensor; sub-graphs once."""
    for field in descriptor.fields:
        if field.message_type is None or path.count(field.name) or depth > 7:
            continue
        if field.message_type.name == "TensorProto":
            yield (*path, field.name)
        else:
            yield from places(field.message_type, (*path, field.name), depth + 1)


PLACES = list(places(onnx.ModelProto.DESCRIPTOR))


@pytest.mark.parametrize("path", PLACES, ids=".".join)
def test_tensors_are_found_wherever_the_format_has_them(path):
    model = onnx.ModelProto()
    current: Any = model
    for name in path:
        child = getattr(current, name)
        current = child if isinstance(child, Message) else child.add()
    current.name = "hidden"
    assert [tensor.name for tensor in structure.tensors(model) if tensor.name] == ["hidden"]


def test_rejects_tensors_larger_than_the_file():
    for dims, message in (((1 << 40, 1 << 20), "the file has only"), ((-1,), "dimension of -1")):
        model = parsed("g (float[N] x) => (float[N] y) { y = Add (x, w) }".replace("w)", "x)"))
        model.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=dims, raw_data=b"1234"))
        with pytest.raises(InvalidModel, match=f"'w'.*{message}"):
            files.parse(model.SerializeToString(), "the model")


@pytest.mark.parametrize(
    "text",
    [
        "s = Constant <value = int64[2] {1000000, 1000000}> ()  z = ConstantOfShape (s)",
        "s = Constant <value = int64[2] {1000000, 1000000}> ()  a = Constant <value = float {1}> ()  z = Expand (a, s)",
    ],
)
def test_does_not_fold_huge_constants(text):
    model = parsed(f"g (float[N] x) => (float[N] y) {{ {text}  y = Add (x, z) }}")
    fuse(model)
    assert model.ByteSize() < 1000


def damage(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = exports.proto(next(iter(exports.manifest())))
    change(model)
    return model


def first(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: first(model, "MatMul").input.pop(),
        lambda model: first(model, "Add").input.pop(),
        lambda model: first(model, "Gather").ClearField("input"),
        lambda model: first(model, "Reshape").ClearField("input"),
        lambda model: setattr(model.graph.initializer[0], "data_type", 99),
        lambda model: setattr(model.graph.initializer[0], "raw_data", b"1"),
        lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 99),
        lambda model: model.opset_import.pop(),
    ],
)
def test_every_failure_on_a_damaged_encoder_is_typed(change, tmp_path):
    content = damage(change).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(content)
    with contextlib.suppress(isorun.IsorunError):
        isorun.Session(content, "ort-cpu").close()
    from isorun.cli import main

    for arguments in (["inspect"], ["fuse", "-o", str(tmp_path / "out.onnx")]):
        assert main([arguments[0], str(tmp_path / "model.onnx"), *arguments[1:]]) in (0, 2)


def test_a_failure_keeps_its_cause(monkeypatch):
    from isorun.graph import pipeline

    def broken(model, report):
        raise KeyError("a bug")

    monkeypatch.setattr(pipeline, "simplify", broken)
    with pytest.raises(InvalidModel, match=r"The onnx\.ModelProto.*KeyError: 'a bug'") as caught:
        fuse(exports.proto(next(iter(exports.manifest()))))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_long_chain_of_sums_is_read_at_once():
    """Each value is looked at once, whatever the number of paths to it."""
    nodes = "  ".join(f"v{index + 1} = Add (v{index}, v{index})" for index in range(60))
    model = parsed(f"g (float[N] v0) => (float[N] y) {{ {nodes}  y = Neg (v60) }}")
    assert not fuse(model).is_encoder


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_rejects_two_versions_of_a_domain(domain: str) -> None:
    model = parsed("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    version = model.opset_import[0].version
    model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    files.parse(model.SerializeToString(), "the model")
    model.opset_import[-1].version = version - 1
    assert all(f"versions {version} and {version - 1}" in reason for reason in refusals(model))
