"""The last layer for one position alone: the same answers, where that position is all that is read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
import small_bert
from isorun.errors import UnsupportedModel
from isorun.graph.inspect import inspect
from isorun.graph.ops import functions, lower
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import last_layer, padding_removal, select_outputs
from isorun.graph.transforms.precision import half
from rewrites import LAYERS, PLAIN, number, use

POOLED = [
    PLAIN,
    "bert-dynamo23-sdpa",
    "albert-torchscript14-sdpa",
    "roberta-dynamo18-eager",
    "xlm-r-torchscript17-sdpa",
]
CLASSIFIERS = ["distilbert-sequence-dynamo18-eager", "electra-sequence-torchscript17-sdpa"]
HIDDEN, POOLER = "last_hidden_state", "pooler_output"


def reading(change: Callable[[ir.Model, ir.Value], ir.Value], label: str = PLAIN) -> ir.Model:
    """An export whose only output is made from the hidden states by nodes of one's own."""
    model = exports.model(label)
    hidden = next(value for value in model.graph.outputs if value.name == HIDDEN)
    output = change(model, hidden)
    output.name, output.type, output.shape = "read", ir.TensorType(ir.DataType.FLOAT), None
    model.graph.outputs[:] = [output]
    return model


def node(model: ir.Model, operator: str, inputs: list[ir.Value], **attributes: int) -> ir.Value:
    new_node = ir.node(operator, inputs, attributes)
    model.graph.append(new_node)
    return new_node.outputs[0]


def gathered(model: ir.Model, hidden: ir.Value, *positions: int, scalar: bool = True) -> ir.Value:
    index = number(model, "index", positions[0] if scalar else list(positions), np.int64)
    return node(model, "Gather", [hidden, index], axis=1)


def sliced(model: ir.Model, hidden: ir.Value, start: int, stop: int) -> ir.Value:
    bounds = {"start": start, "stop": stop, "axis": 1}
    return node(model, "Slice", [hidden, *(number(model, name, [n], np.int64) for name, n in bounds.items())])


def kinds(model: ir.Model) -> list[str]:
    return [fused_node.op_type for fused_node in model.graph if functions.is_fused(fused_node)]


def is_narrow(model: ir.Model) -> bool:
    operators = kinds(model)
    assert operators.count(functions.SINGLE_QUERY) + operators.count(functions.ATTENTION) == LAYERS
    return operators.count(functions.SINGLE_QUERY) == 1


def check(model: ir.Model, fed: exports.Feeds, *, packs: bool = True) -> ir.Model:
    """Fused, in every dialect, with padding and without, it answers what it answers untouched."""
    proto = ir.serde.serialize_model(model)
    expected = exports.run(proto, fed)
    fused = ir.serde.deserialize_model(proto)
    assert fuse(fused).complete
    assert exports.difference(expected, exports.run(fused, fed)) < exports.TOLERANCE
    for dialect in functions.dialects():
        for remove in (False, True):
            lowered = fused.clone()
            if remove and not packs:
                with pytest.raises(UnsupportedModel):
                    padding_removal.remove(lowered)
                continue
            if remove:
                padding_removal.remove(lowered)
            got = exports.run(lower.lower(lowered, dialect), fed)
            assert exports.difference(expected, got) < exports.TOLERANCE, (dialect, remove)
    return fused


@pytest.mark.sampled(5)
@pytest.mark.parametrize("label", POOLED)
def test_where_the_pooler_is_all_that_is_wanted(label: str) -> None:
    model = exports.model(label)
    select_outputs.keep(model, [POOLER])
    assert is_narrow(check(model, exports.given(label)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label", CLASSIFIERS)
def test_where_there_is_a_classifier(label: str) -> None:
    assert is_narrow(check(exports.model(label), exports.given(label)))


def test_only_layer() -> None:
    """Its keys and values come from the embedding."""
    single_layer = small_bert.build(num_hidden_layers=1)
    select_outputs.keep(single_layer, [POOLER])
    assert last_layer.narrow(single_layer)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    fed = small_bert.feeds(mask)
    expected = exports.run(lower.lower(single_layer.clone(), "primitive"), fed)
    padding_removal.remove(single_layer)
    assert exports.difference(expected, exports.run(lower.lower(single_layer, "primitive"), fed)) < exports.TOLERANCE


@pytest.mark.sampled(6)
@pytest.mark.parametrize("label", [PLAIN, "mpnet-dynamo18-eager", "mpnet-torchscript17-eager"])
@pytest.mark.parametrize("position", [0, 3])
def test_a_position_that_is_read_by_its_number(label: str, position: int) -> None:
    model = reading(lambda model, hidden: gathered(model, hidden, position), label)
    assert is_narrow(check(model, exports.given(label), packs=position == 0))  # not every row has a fourth token


@pytest.mark.long
def test_ways_to_read_it() -> None:
    ways: list[Callable[[ir.Model, ir.Value], ir.Value]] = [
        lambda model, hidden: gathered(model, hidden, 0, scalar=False),
        lambda model, hidden: sliced(model, hidden, 0, 1),
        lambda model, hidden: gathered(model, node(model, "Tanh", [hidden]), 0),
        lambda model, hidden: node(
            model, "Sub", [sliced(model, hidden, 0, 1), gathered(model, hidden, 0, scalar=False)]
        ),
        lambda model, hidden: gathered(model, hidden, 0, 0, scalar=False),
        lambda model, hidden: node(
            model, "Mul", [gathered(model, hidden, 0), gathered(model, node(model, "Tanh", [hidden]), 0)]
        ),
    ]
    for way in ways:
        assert is_narrow(check(reading(way), exports.given(PLAIN)))


@pytest.mark.parametrize(
    "change",
    [
        lambda model, hidden: node(model, "Identity", [hidden]),
        lambda model, hidden: sliced(model, hidden, 0, 2),
        lambda model, hidden: node(model, "Sub", [gathered(model, hidden, 0), gathered(model, hidden, 1)]),
        lambda model, hidden: gathered(model, hidden, -1),
        lambda model, hidden: node(model, "ReduceMean", [hidden]),
        lambda model, hidden: gathered(model, node(model, "Sign", [hidden]), 0),  # not known to treat each token alike
        lambda model, hidden: gathered(model, node(model, "CumSum", [hidden, number(model, "at", 1, np.int64)]), 0),
    ],
    ids=["all", "two by a slice", "two", "from the end", "the mean", "another operator", "sums"],
)
def test_where_more_is_read_it_is_left(change: Callable[[ir.Model, ir.Value], ir.Value]) -> None:
    model = reading(change)
    proto = ir.serde.serialize_model(model)
    fused = ir.serde.deserialize_model(proto)
    fuse(fused)
    assert not is_narrow(fused)
    fed = exports.given(PLAIN)
    assert exports.difference(exports.run(proto, fed), exports.run(fused, fed)) < exports.TOLERANCE


@pytest.mark.parametrize(("norm", "narrow"), [(2, True), (-2, False)], ids=["of the first layer", "within the last"])
def test_hidden_states_of_a_layer_before_may_be_wanted_too(norm: int, narrow: bool) -> None:
    model = exports.model(PLAIN)
    norms = [norm_node for norm_node in model.graph if norm_node.op_type == "LayerNormalization"]
    select_outputs.keep(model, [POOLER])
    use(model, norms[norm].outputs[0].name or "")
    proto = ir.serde.serialize_model(model)
    fuse(model)
    assert is_narrow(model) is narrow
    fed = exports.given(PLAIN)
    assert exports.difference(exports.run(proto, fed), exports.run(model, fed)) < exports.TOLERANCE


def test_what_is_left_to_multiply() -> None:
    """Of the last layer's products, that of keys and values alone is one of every token."""
    hidden, inner = 32, 64
    whole, model = exports.model(PLAIN), exports.model(PLAIN)
    select_outputs.keep(model, [POOLER])
    for variant in (whole, model):
        fuse(variant)
    before, after = inspect(whole), inspect(model)
    assert before.operations_per_token - after.operations_per_token == 2 * (2 * hidden * hidden + 2 * hidden * inner)
    assert before.operations_per_token_and_key == 4 * hidden * LAYERS
    assert after.operations_per_token_and_key == 4 * hidden * (LAYERS - 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label", [PLAIN, "bert-dynamo23-sdpa", "mpnet-dynamo18-eager"])
def test_in_fp16(label: str, tmp_path: Path) -> None:
    model = reading(lambda model, hidden: gathered(model, hidden, 0), label)
    fed = exports.given(label)
    expected = exports.run(model, fed)
    assert fuse(model).complete
    half.convert(model)
    assert is_narrow(model)
    for dialect in ("onnx", "primitive"):
        got = exports.run_lowered("reference", dialect, model.clone(), fed, tmp_path / f"{dialect}.onnx", "fp16")
        assert exports.difference(expected, got) < 0.02, dialect
