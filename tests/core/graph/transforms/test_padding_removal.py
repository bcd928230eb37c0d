"""Removing padding: the same answers as the untouched graph, on every kind of mask, dialect and runtime."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import small_bert
from isorun.errors import UnsupportedModel
from isorun.graph import model_info, tasks
from isorun.graph.analysis import mask_input
from isorun.graph.builders import architectures
from isorun.graph.io import files
from isorun.graph.ops import functions, lower
from isorun.graph.transforms import padding_removal
from isorun.plugin.backend import Executable
from isorun.types import CompileConfig, LoweredModel
from isorun_backends.onnxruntime.cpu import OrtCpu
from isorun_backends.openvino.backend import OpenVINO
from isorun_backends.reference import Reference

TOLERANCE = 1e-5
BACKENDS = {"ort-cpu": OrtCpu, "openvino": OpenVINO, "reference": Reference}
PAIRS = [
    ("ort-cpu", "com.microsoft.cpu"),
    ("ort-cpu", "com.microsoft"),
    ("ort-cpu", "onnx"),
    ("ort-cpu", "primitive"),
    ("openvino", "onnx"),
    ("openvino", "primitive"),
    ("reference", "primitive"),
]
MASKS = {
    "none": [[1] * 7, [1] * 7],
    "right": [[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]],
    "holes": [[1, 0, 1, 1, 0, 0, 1], [0, 1, 0, 1, 0, 1, 0]],
    "no key": [[1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]],
    "no key at all": [[0, 0, 0]],
    "one token": [[1]],
}


def model(task: str | None = None) -> ir.Model:
    head = None if task is None else replace(architectures.BERT.heads[task], activation="gelu")
    labels = {tasks.ANSWERS: 2, tasks.WORDS: small_bert.VOCABULARY}.get(task or "", 3)
    return small_bert.build(task=task, head=head, labels=labels)


def open_on(backend: str, dialect: str, encoder: ir.Model, path: Path) -> Executable:
    info = model_info.describe(encoder)
    files.write(lower.lower(encoder, dialect), path)
    lowered = LoweredModel(path, dialect, "", info, cached=False)
    return BACKENDS[backend](backend).compile(lowered, CompileConfig())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Executable]:
    """The packed model on a backend in a dialect."""
    opened: dict[tuple[str, str], Executable] = {}

    def give(backend: str, dialect: str) -> Executable:
        if (backend, dialect) not in opened:
            encoder = model()
            padding_removal.remove(encoder)
            path = tmp_path_factory.mktemp("packed") / "model.onnx"
            opened[backend, dialect] = open_on(backend, dialect, encoder, path)
        return opened[backend, dialect]

    return give


def untouched(encoder: ir.Model, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(ir.serde.serialize_model(lower.lower(encoder, "primitive"))).run(None, fed)  # type: ignore[return-value]


UNTOUCHED = ReferenceEvaluator(ir.serde.serialize_model(lower.lower(model(), "primitive")))


def assert_same(
    got: list[np.ndarray],
    wanted: list[np.ndarray],
    mask: np.ndarray,
    by_token: tuple[bool, ...] = (True, False),
) -> None:
    """Equal where the mask is not 0, and zero elsewhere; equal everywhere where a value is a sequence's."""
    for output, expected, token in zip(got, wanted, by_token, strict=True):
        assert output.shape == expected.shape
        assert output.dtype == expected.dtype
        if token:
            expected = np.where((mask != 0).reshape(*mask.shape, *[1] * (expected.ndim - 2)), expected, 0)
            assert not output[mask == 0].any()
        np.testing.assert_allclose(output, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("backend", "dialect"), PAIRS)
def test_every_mask_on_every_backend(
    backend: str, dialect: str, kind: str, packed: Callable[[str, str], Executable]
) -> None:
    fed = small_bert.feeds(np.array(MASKS[kind]))
    assert_same(packed(backend, dialect).run(None, fed), UNTOUCHED.run(None, fed), fed["attention_mask"])


@pytest.mark.parametrize(("backend", "dialect"), [pair for pair in PAIRS if pair[0] != "reference"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_mask_of_any_shape(
    backend: str, dialect: str, packed: Callable[[str, str], Executable], data: st.DataObject
) -> None:
    rows, length = data.draw(st.integers(1, 5)), data.draw(st.integers(1, small_bert.POSITIONS))
    bits = data.draw(st.lists(st.sampled_from((0, 0, 1, 1, 7)), min_size=rows * length, max_size=rows * length))
    fed = small_bert.feeds(np.array(bits).reshape(rows, length), data.draw(st.integers(0, 99)))
    assert_same(packed(backend, dialect).run(None, fed), UNTOUCHED.run(None, fed), fed["attention_mask"])


@pytest.mark.parametrize("head", tasks.TASKS.values())
@pytest.mark.parametrize(
    ("backend", "dialect"),
    [pytest.param(*pair, marks=[pytest.mark.long] if index else []) for index, pair in enumerate(PAIRS)],
)
def test_heads(backend: str, dialect: str, head: str, tmp_path: Path) -> None:
    encoder = model(head)
    known = mask_input.find(encoder.graph)
    padding_removal.remove(encoder)
    executable = open_on(backend, dialect, encoder, tmp_path / "model.onnx")
    tokens = {
        "sequence-classification": ("last_hidden_state",),
        "token-classification": ("last_hidden_state", "logits"),
        "question-answering": ("last_hidden_state", "start_logits", "end_logits"),
        "masked-language-model": ("last_hidden_state", "logits"),
    }
    assert known == ("attention_mask", False, tokens[head])
    by_token = tuple(value.name in tokens[head] for value in encoder.graph.outputs)
    for mask in MASKS.values():
        fed = small_bert.feeds(np.array(mask))
        assert_same(executable.run(None, fed), untouched(model(head), fed), fed["attention_mask"], by_token)


def test_dense_layers_see_kept_tokens_only() -> None:
    encoder = model()
    padding_removal.remove(encoder)
    inner = next(node for node in encoder.graph if node.op_type == "BiasGelu").inputs[0]
    encoder.graph.outputs.append(inner)
    inner.type = ir.TensorType(ir.DataType.FLOAT)
    mask = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]])  # 2, then 2 and position 0, then all 5
    seen = untouched(encoder, small_bert.feeds(mask))[-1]
    assert seen.shape == (1, 16, 24)  # 2 + 3 + 5, rounded up


def test_the_rewritten_model_is_a_sound_one_in_the_fused_form() -> None:
    bert = model()
    padding_removal.remove(bert)
    proto = ir.serde.serialize_model(bert)
    onnx.checker.check_model(proto)
    assert {node.op_type for node in bert.graph if functions.is_fused(node)} <= {body.name for body in proto.functions}
    fed = small_bert.feeds(np.array(MASKS["holes"]))
    inlined = onnx.inliner.inline_local_functions(proto)  # the evaluator needs every attribute of a function
    assert_same(ReferenceEvaluator(inlined).run(None, fed), UNTOUCHED.run(None, fed), fed["attention_mask"])  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("backend", "dialect"), PAIRS)
def test_a_broken_row_breaks_no_other(backend: str, dialect: str, tmp_path: Path) -> None:
    encoder = model()
    words = encoder.graph.initializers["embeddings.word_embeddings.weight"]
    table = words.const_value.numpy().copy()  # type: ignore[union-attr]
    table[7] = np.nan
    words.const_value = ir.tensor(table, name=words.name)
    padding_removal.remove(encoder)
    executable = open_on(backend, dialect, encoder, tmp_path / "model.onnx")
    mask = np.array([[1, 1, 1], [0, 0, 1], [1, 0, 0]])
    fed = small_bert.feeds(mask)
    fed["input_ids"] = np.where(fed["input_ids"] == 7, 8, fed["input_ids"])
    want = executable.run(["pooler_output"], fed)[0]
    fed["input_ids"][0, 2] = 7  # the token just before row 1, whose own first position is padding
    got = executable.run(["pooler_output"], fed)[0]
    assert not np.allclose(got[0], want[0])  # the poison was felt
    np.testing.assert_allclose(got[1:], want[1:], atol=TOLERANCE)


COUNTER = itertools.count()


def with_head(add: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Model:
    """The tiny model with one output more, made of its hidden states and its mask."""
    encoder = model()
    node = next(candidate for candidate in encoder.graph if candidate.outputs[0] is encoder.graph.outputs[0])
    hidden = node.inputs[0]
    new = add(hidden, encoder.graph.inputs[1])
    new.name, new.type = "new", ir.TensorType(ir.DataType.FLOAT)
    pending, nodes = [new.producer()], []
    while pending:
        current = pending.pop()
        if current is not None and current.graph is None:
            nodes.append(current)
            pending.extend(value.producer() for value in current.inputs if value is not None)
    encoder.graph.extend(reversed(list(dict.fromkeys(nodes))))
    encoder.graph.outputs.append(new)
    encoder.graph.sort()
    for current in list(encoder.graph):
        for value in current.inputs:
            if value is not None and value.const_value is not None and value.name not in encoder.graph.initializers:
                encoder.graph.initializers.add(value)
    return encoder


def constant(*numbers: int, shape: tuple[int, ...] = (-1,)) -> ir.Value:
    name = f"constant.{next(COUNTER)}"
    tensor = ir.tensor(np.array(numbers, np.int64).reshape(shape), name=name)
    return ir.Value(name=name, const_value=tensor, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype))


def op(kind: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
    return ir.node(kind, list(inputs), attributes).outputs[0]


def masked_mean(hidden: ir.Value, mask: ir.Value) -> ir.Value:
    """As sentence-transformers exports it."""
    factor = op("Expand", op("Cast", op("Unsqueeze", mask, constant(-1)), to=1), op("Shape", hidden))
    total = op("ReduceSum", op("Mul", hidden, factor), constant(1), keepdims=0)
    return op("Div", total, op("ReduceSum", factor, constant(1), keepdims=0))


def normalized(hidden: ir.Value) -> ir.Value:
    """With a vector in place of other hidden states, as in a MobileBERT with ``layer_norm``."""
    vectors = []
    for name in ("skip", "gamma", "beta", "bias"):
        tensor = ir.tensor(np.linspace(-1, 1, small_bert.WIDTH, dtype=np.float32), name=f"own.{name}")
        type_ = ir.TensorType(tensor.dtype)
        vectors.append(ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape(tensor.shape), type=type_))
    norm = ir.node("SkipLayerNormalization", [hidden, *vectors], {"epsilon": 1e-12}, domain=functions.DOMAIN)
    return norm.outputs[0]


def computed(hidden: ir.Value, *numbers: ir.Value) -> ir.Value:
    """The hidden state of each row at the position with the largest number, padding or not; their sum for several."""
    tokens = []
    for number in numbers:
        position = op("ArgMax", number, axis=1, keepdims=1)
        position.shape, position.type = ir.Shape(("batch", 1)), ir.TensorType(ir.DataType.INT64)
        tokens.append(op("GatherND", hidden, position, batch_dims=1))
    return op("Sum", *tokens)


def flattened(hidden: ir.Value, mask: ir.Value) -> ir.Value:
    """The hidden state of each row at its first key, as TorchScript exports an index of two tensors."""
    hidden.shape = ir.Shape(("batch", "sequence", small_bert.WIDTH))
    zero, one = constant(0, shape=()), constant(1, shape=())
    rows = op("Range", zero, op("Gather", op("Shape", mask), zero), one)
    begins = op("Mul", rows, op("Gather", op("Shape", hidden), one))
    return op("Gather", op("Flatten", hidden, axis=2), op("Add", op("ArgMax", mask, axis=1, keepdims=0), begins))


READERS = {
    "masked mean": masked_mean,
    "masked mean of a norm": lambda hidden, mask: masked_mean(normalized(hidden), mask),
    "masked mean of activated features": lambda hidden, mask: masked_mean(
        op("Softplus", op("Slice", hidden, constant(1), constant(5), constant(-1))), mask
    ),
    "masked maximum from 0 on": lambda hidden, mask: op(
        "ReduceMax", op("Mul", op("Relu", hidden), op("Cast", op("Unsqueeze", mask, constant(-1)), to=1)), axes=[1]
    ),
    "positions 0 and 2": lambda hidden, mask: op("Gather", hidden, constant(0, 2), axis=1),
    "positions 0 and 2 of an axis counted from the end": lambda hidden, mask: op(
        "Gather", hidden, constant(0, 2), axis=-2
    ),
    "slice of an axis counted from the end": lambda hidden, mask: op(
        "Slice", hidden, constant(0), constant(2), constant(-2)
    ),
    "the first key": lambda hidden, mask: computed(hidden, mask),
    "the first padding": lambda hidden, mask: computed(hidden, op("Sub", constant(1), mask)),
    "two computed positions": lambda hidden, mask: computed(
        hidden, op("CumSum", mask, constant(1, shape=())), op("CumSum", mask, constant(1, shape=()), reverse=1)
    ),
    "rows of flattened tokens": flattened,
    "slice": lambda hidden, mask: op("Slice", hidden, constant(1), constant(3), constant(1), constant(1)),
    "first by slice": lambda hidden, mask: op(
        "Squeeze", op("Slice", hidden, constant(0), constant(1), constant(1)), constant(1)
    ),
}
OWN_KEYS = [{"causal": 1}, {"causal": 1, "guarded": 1}, {"paired": 1, "guarded": 1}, {"window": 1}, {"window": 0}]


@pytest.mark.sampled(11)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", [kind for kind in MASKS if kind not in ("no key at all", "one token")])
def test_what_reads_hidden_states_soundly(reader: str, kind: str) -> None:
    encoder = with_head(READERS[reader])
    padding_removal.remove(encoder)
    fed = small_bert.feeds(np.array(MASKS[kind]))
    with np.errstate(invalid="ignore"):  # the mean of no token
        wanted = untouched(with_head(READERS[reader]), fed)[-1]
        got = untouched(encoder, fed)[-1]
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("attributes", OWN_KEYS, ids=str)
@pytest.mark.parametrize("reader", ["positions 0 and 2", "the first padding"])
def test_reads_padding_whose_keys_differ_from_its_rows(reader: str, attributes: dict[str, int]) -> None:
    encoder = with_head(READERS[reader])
    for node in encoder.graph:
        if node.op_type == "SelfAttention":
            node.attributes.update({name: ir.AttrInt64(name, value) for name, value in attributes.items()})
    functions.carry(encoder)
    removed = encoder.clone()
    padding_removal.remove(removed)
    for kind in ("right", "left", "holes", "no key"):
        fed = small_bert.feeds(np.array(MASKS[kind]))
        np.testing.assert_allclose(untouched(removed, fed)[-1], untouched(encoder, fed)[-1], atol=TOLERANCE)


REFUSED = {
    "ReduceMean": lambda hidden, mask: op("ReduceMean", hidden, keepdims=0),
    "ReduceMax": lambda hidden, mask: op("ReduceMax", hidden, keepdims=0),
    "Gather": lambda hidden, mask: op("Gather", hidden, constant(-1), axis=1),
    "Slice": lambda hidden, mask: op("Slice", hidden, constant(-2), constant(2**62), constant(1)),
    "Transpose": lambda hidden, mask: op("Transpose", hidden),
    "MatMul": lambda hidden, mask: op("MatMul", hidden, op("Transpose", hidden)),
    "Add": lambda hidden, mask: op("Add", hidden, op("Cast", op("Unsqueeze", mask, constant(-1)), to=1)),
    "Mul": lambda hidden, mask: op("Mul", hidden, op("Cast", op("Unsqueeze", mask, constant(1)), to=1)),
    "Softmax": lambda hidden, mask: op("Softmax", hidden, axis=1),
    "ArgMax of features": lambda hidden, mask: computed(hidden, op("ReduceMax", hidden, axes=[-1], keepdims=0)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_may_read_padding_is_refused_by_name(kind: str) -> None:
    operator = ".*" if kind == "MatMul" else kind.split()[0]
    with pytest.raises(UnsupportedModel, match=rf"Padding cannot be removed: .*\({operator}\)"):
        padding_removal.remove(with_head(REFUSED[kind]))


def masked(hidden: ir.Value, mask: ir.Value) -> ir.Value:
    return op("Mul", hidden, op("Cast", op("Unsqueeze", mask, constant(-1)), to=1))


def by_length(hidden: ir.Value, mask: ir.Value) -> ir.Value:
    """The sum over the tokens, divided by the number of positions."""
    length = op("Cast", op("Gather", op("Shape", mask), constant(1)), to=1)
    return op("Div", op("ReduceSum", masked(hidden, mask), constant(1), keepdims=0), length)


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("ReduceMax", lambda hidden, mask: op("ReduceMax", masked(hidden, mask), axes=[1], keepdims=0)),
        ("ReduceMean", lambda hidden, mask: op("ReduceMean", masked(hidden, mask), axes=[1], keepdims=0)),
        ("Cast", by_length),
    ],
)
def test_what_more_padding_would_change_is_refused_by_name(kind: str, reader: Callable[..., ir.Value]) -> None:
    """Such as the padding that requests get which share a batch with longer ones."""
    with pytest.raises(UnsupportedModel, match=rf"\({kind}\)"):
        padding_removal.remove(with_head(reader))


def test_layers_with_masks_of_their_own_are_refused() -> None:
    encoder = model()
    layer = [node for node in encoder.graph if node.op_type == "SelfAttention"][1]
    layer.replace_input_with(1, encoder.graph.inputs[2])
    with pytest.raises(UnsupportedModel, match="same key mask"):
        padding_removal.remove(encoder)


def test_causal_windows_are_refused() -> None:
    encoder = model()
    for node in encoder.graph:
        if node.op_type == "SelfAttention":
            node.attributes.update({name: ir.AttrInt64(name, 1) for name in ("causal", "window")})
    with pytest.raises(UnsupportedModel, match="window"):
        padding_removal.remove(encoder)


def test_a_model_that_is_no_encoder_is_refused() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    graph = ir.Graph([x], [op("Identity", x)], nodes=[], opset_imports={"": 17})
    with pytest.raises(UnsupportedModel, match="no SelfAttention"):
        padding_removal.remove(ir.Model(graph, ir_version=10))


def test_a_mask_that_lowers_scores_by_little_keeps_padding() -> None:
    soft = model()
    for node in soft.graph:
        if node.op_type == functions.ATTENTION:
            node.attributes["mask_filter_value"] = ir.AttrFloat32("mask_filter_value", -100.0)
    assert "lowers the scores of padding by 100 only" in model_info.describe(soft).keeps_padding
