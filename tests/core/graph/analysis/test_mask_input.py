"""Which input is the mask, and which outputs belong to tokens: by the graph, or by name where the graph is silent."""

import onnx_ir as ir
import pytest

import exports
import masks
import small_bert
from isorun.graph import model_info
from isorun.graph.analysis import mask_input
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal

OUTPUTS = {
    "bert-torchscript14-eager": ("last_hidden_state",),
    "bert-qa-torchscript17-sdpa": ("start_logits", "end_logits"),
    "bert-token-torchscript17-sdpa": ("logits",),
    "bert-tf2onnx13": ("last_hidden_state",),
    "mpnet-dynamo18-eager": ("last_hidden_state",),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label", OUTPUTS)
def test_the_outputs_of_an_export_whose_dimensions_have_other_names(label: str) -> None:
    model = exports.fused(label)
    assert mask_input.find(model.graph) == ("attention_mask", False, OUTPUTS[label])


@pytest.mark.parametrize("family", ["esm", "xlm-r-xl"])
def test_an_output_that_packing_restores_to_rows_belongs_to_tokens(family: str) -> None:
    """Embeddings that are not normalized, or not computed token by token, are no fused embeddings."""
    model = exports.fused(f"{family}-torchscript17-eager")
    assert model_info.describe(model).token_outputs == ("last_hidden_state",)


@pytest.mark.parametrize("zero", [True, False])
def test_embeddings_that_mix_neighbours_keep_padding_that_is_not_zero(zero: bool) -> None:
    """MobileBERT's: beyond the end of a row they read zeros, and before padding its embedding."""
    model = exports.model("mobilebert-torchscript17-eager")
    (table,) = (value for name, value in model.graph.initializers.items() if "word_embeddings" in name)
    assert table.const_value is not None
    rows = table.const_value.numpy().copy()
    rows[0] = 0 if zero else rows[1]
    table.const_value = ir.tensor(rows, name=table.name)
    fuse(model)
    info = model_info.describe(model)
    assert bool(info.keeps_padding) == (not zero)
    assert not zero or info.token_outputs == ("last_hidden_state",)


@pytest.mark.parametrize("name", [masks.NAME, None])
def test_finds_the_mask_under_any_name(name: str | None) -> None:
    info = model_info.describe(masks.renamed(small_bert.build(), name))
    assert info.mask == name
    assert info.token_outputs == (None if name is None else ("last_hidden_state",))
    assert bool(info.keeps_padding) == (name is None)


def test_finds_the_mask_of_an_encoder_that_reads_padding() -> None:
    model = masks.renamed(small_bert.build(), masks.NAME)
    hidden = model.graph.outputs[0]
    axes = ir.Value(name="axes", const_value=ir.tensor([1]), type=ir.TensorType(ir.DataType.INT64))
    model.graph.initializers.add(axes)
    mean = ir.node("ReduceMean", [hidden, axes], {"keepdims": 0})
    mean.outputs[0].name, mean.outputs[0].type = "mean", hidden.type
    model.graph.append(mean)
    model.graph.outputs.append(mean.outputs[0])
    info = model_info.describe(model)
    assert "may read the hidden states of padding" in info.keeps_padding
    assert (info.mask, info.token_outputs) == (masks.NAME, ("last_hidden_state",))


def test_describe_does_not_change_the_model() -> None:
    model = small_bert.build()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert padding_removal.examine(model).refusal == ""
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


PLAIN = """<ir_version: 10, opset_import: ["" : 17]>
g (float[{dims}] {name}, float[N] z) => (float[{dims}, 4] each, float[N, 4] pooled)
{{ each = Identity (z) pooled = Identity (z) }}"""


@pytest.mark.parametrize(
    ("dims", "name", "expected"),
    [
        ("N, S", "attention_mask", ("attention_mask", False, ("each",))),
        ("2, 4", "attention_mask", ("attention_mask", False, ("each",))),
        ("N, ?", "attention_mask", ("attention_mask", False, None)),
        ("N", "attention_mask", (None, False, None)),
        ("N, S", "input_mask", (None, False, None)),
    ],
)
def test_without_an_attention_names_decide(
    dims: str, name: str, expected: tuple[str | None, bool, tuple[str, ...] | None]
) -> None:
    graph = ir.from_onnx_text(PLAIN.format(dims=dims, name=name)).graph
    assert mask_input.find(graph) == expected
