"""Which graphs compute with numbers of a row that padding changes."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import exports
from isorun.graph.model_info import describe
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal

SEEN = {
    "the share of real tokens": "f = Cast <to = 1> (attention_mask)  m = ReduceMean (f, axis)  y = Mul (first, m)",
    "the least of a mask": "f = Cast <to = 1> (attention_mask)  m = ReduceMin (f, axis)  y = Mul (first, m)",
    "the number of masked places": (
        "f = Cast <to = 1> (attention_mask)  n = Sub (one, f)  m = ReduceSum (n, axis)  a = Add (m, one)"
        "  y = Div (first, a)"
    ),
    "a mean of ids": "f = Cast <to = 1> (input_ids)  m = ReduceMean (f, axis)  y = Mul (first, m)",
    "the share of a rare id": (
        "e = Equal (input_ids, seven)  f = Cast <to = 1> (e)  m = ReduceMean (f, axis)  a = Add (m, one)"
        "  y = Mul (first, a)"
    ),
    "a sum of ones": (
        "e = Equal (input_ids, input_ids)  f = Cast <to = 1> (e)  m = ReduceSum (f, axis)  y = Div (first, m)"
    ),
    "the last token by an id of padding": (
        "p = Equal (input_ids, seven)  r = Not (p)  i = Cast <to = 7> (r)  n = ReduceSum (i, axis)  l = Sub (n, one_i)"
        "  y = GatherND <batch_dims = 1> (hidden, l)"
    ),
}
UNSEEN = {
    "the first token": "y = Identity (first)",
    "the number of real tokens": ("f = Cast <to = 1> (attention_mask)  m = ReduceSum (f, axis)  y = Div (first, m)"),
    "the last token by the mask": (
        "n = ReduceSum (attention_mask, axis)  l = Sub (n, one_i)  y = GatherND <batch_dims = 1> (hidden, l)"
    ),
}
_CONSTANTS = "int64[1] axis = {1}, float one = {1}, int64 seven = {7}, int64 one_i = {1}, int64 zero = {0}"


def model(nodes: str) -> ir.Model:
    """An export whose hidden states are read by further nodes, up to ``y``; ``first`` are those of the first token."""
    proto = exports.proto("bert-torchscript17-eager")
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        head (float[B, S, 32] hidden, int64[B, S] input_ids, int64[B, S] attention_mask) => (float[B, 32] y)
        <{_CONSTANTS}> {{ first = Gather <axis = 1> (hidden, zero)  {nodes} }}"""
    head = onnx.parser.parse_model(text)
    proto = onnx.version_converter.convert_version(proto, 18)
    renamed = onnx.compose.add_prefix(head, "head/", rename_inputs=False)
    output = proto.graph.output[0].name
    for node in renamed.graph.node:
        node.input[:] = [output if name == "hidden" else name for name in node.input]
    proto.graph.node.extend(renamed.graph.node)
    proto.graph.initializer.extend(renamed.graph.initializer)
    del proto.graph.output[:]
    proto.graph.output.extend(renamed.graph.output)
    return ir.serde.deserialize_model(proto)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
def test_numbers_that_padding_changes(name: str) -> None:
    graph = model((SEEN | UNSEEN)[name])
    assert fuse(graph).fused["SelfAttention"]
    assert padding_removal.examine(graph).refusal == ""
    info = describe(graph)
    assert bool(info.sees_padding) == (name in SEEN)
    assert info.may_be_padded(np.ones((1, 4))).tolist() == [name in UNSEEN]


@pytest.mark.parametrize(
    "text",
    [
        "g (int64[B, 8] x) => (string[B, 8] y) { y = Cast <to = 8> (x) }",
        "g (float[B, 8] x) => (seq(float[B, 1]) y) { t = Tanh (x) y = SplitToSequence <axis = 1> (t) }",
    ],
)
def test_texts_and_sequences_are_results_like_others(text: str) -> None:
    model = ir.serde.deserialize_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
    fuse(model)
    assert not describe(model).sees_padding
