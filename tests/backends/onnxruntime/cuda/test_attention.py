"""The forms of a mask, by ONNX Runtime's CPU kernels of the same operators: equal wherever a form is right, and
never chosen where it is not."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tiny
from cuda_forms import BATCH, SEQUENCE, cpu_session, feeds_with, lower, whole_session, with_computed_mask
from isorun.parity.samples import MASKS
from isorun_backends.onnxruntime.cuda import attention

LAYERS = tiny.CONFIG["num_hidden_layers"]


@pytest.fixture(scope="module")
def lowered(bert):
    return lower(bert)


@pytest.fixture(scope="module")
def forms(lowered):
    return attention.forms(lowered.path)


@pytest.fixture(scope="module")
def sessions(lowered, forms):
    return {form: cpu_session(content, lowered) for form, content in forms.models.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("form", ["plain", "bias", "lengths", "unmasked"])
def test_an_allowed_form_agrees_with_the_lowered_model(lowered, sessions, kind, form):
    mask = MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(1))
    feeds = feeds_with(mask)
    (expected,) = whole_session(lowered).run(["last_hidden_state"], feeds)
    (hidden,) = sessions[form].run(["last_hidden_state"], feeds)
    error = np.abs(hidden - expected)[mask != 0].max()
    if attention.allows(form, mask):
        assert error < 1e-5
    elif (form, kind) in {("lengths", "left"), ("lengths", "holes"), ("unmasked", "right")}:
        assert error > 0.01, "the form would be right for a mask that it rejects"


@pytest.mark.parametrize("kind", MASKS)
def test_a_last_layer_of_one_position_has_its_own_mask_in_every_form(bert, kind):
    lowered = lower(bert, outputs=["pooler_output"])
    forms = attention.forms(lowered.path)
    assert list(forms.models) == list(attention.FORMS[:4])
    mask = MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(1))
    feeds = feeds_with(mask)
    (expected,) = whole_session(lowered).run(None, feeds)
    for form, content in forms.models.items():
        kinds = [node.op_type for node in onnx.load_model_from_string(content).graph.node]
        assert (kinds.count("Attention"), kinds.count("MultiHeadAttention")) == (LAYERS - 1, 1)
        if attention.allows(form, mask):
            np.testing.assert_allclose(cpu_session(content, lowered).run(None, feeds)[0], expected, atol=1e-5)


def test_which_form_a_mask_takes():
    def chosen(*rows):
        return attention.choose(np.array(rows))

    assert chosen([1, 1, 1, 0], [1, 0, 0, 0]) == "lengths"
    assert chosen([1, 1, 1, 1]) == "lengths"
    assert chosen([1] * 7 + [0], [0] + [1] * 7) == "bias"
    assert chosen([1] * 7 + [0], [1, 0] + [1] * 6) == "bias"
    assert chosen([0, 1, 1]) == "plain"  # 3 keys are no multiple of 8
    assert chosen([1] * 8, [0] * 8) == "plain"  # a row without a key
    assert attention.choose(np.zeros((2, 0), np.int64)) == "plain"


def test_without_plans_batches_without_padding_need_no_mask():
    def chosen(*rows):
        return attention.choose(np.array(rows), None, attention.UNPLANNED)

    assert chosen([1, 1, 1], [1, 1, 1]) == "unmasked"
    assert chosen([1] * 7 + [0]) == "bias"
    assert chosen([1, 1, 0]) == "plain"
    assert attention.choose(np.zeros((0, 8), np.int64), None, attention.UNPLANNED) == "plain"


@given(st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=1, max_size=4))
def test_what_is_chosen_is_allowed_and_lengths_mean_the_first_keys(rows):
    mask = np.array(rows)
    form = attention.choose(mask)
    assert attention.allows(form, mask)
    assert attention.allows("plain", mask)
    by_lengths = np.arange(8) < mask.sum(axis=1)[:, None]
    assert (form == "lengths") == bool((by_lengths == mask).all() and mask.any(axis=1).all())


def bias_of(forms, mask):
    """What the form ``bias`` adds to the scores of each layer under a mask: one array, but for its cast."""
    model = onnx.load_model_from_string(forms.models["bias"])
    layers = [node for node in model.graph.node if node.op_type == "Attention"]
    assert {node.input[3] for node in layers} == {""}
    biases = {node.input[5] for node in layers}
    casts = [node for node in model.graph.node if node.output[0] in biases]
    assert {node.op_type for node in casts} == {"CastLike"}
    assert len({node.input[0] for node in casts}) == 1, "the mask is computed for each layer"
    like = next(tensor for tensor in model.graph.initializer if tensor.name == casts[0].input[1])
    zero = np.zeros(like.dims, onnx.helper.tensor_dtype_to_np_dtype(like.data_type))
    like.CopyFrom(numpy_helper.from_array(zero, like.name))  # its data is in another file
    typed = onnx.shape_inference.infer_shapes(model)
    part = onnx.utils.Extractor(typed).extract_model(["attention_mask"], [casts[0].output[0]])
    return ReferenceEvaluator(part).run(None, {"attention_mask": mask})[0]


def test_the_bias_reaches_every_query_and_is_of_the_weights_type(forms):
    mask = np.array([[1, 1, 1], [1, 0, 1]])
    bias = bias_of(forms, mask)
    assert (bias.shape, bias.dtype) == ((2, 1, 3, 3), np.float32)
    np.testing.assert_array_equal(bias < 0, np.broadcast_to(mask[:, None, None] == 0, bias.shape))


def test_an_fp16_graph_has_every_form_and_its_bias_ends_where_fp16_does(bert):
    forms = attention.forms(lower(bert, precision="fp16").path)
    assert set(forms.models) == {"plain", "bias", "lengths", "unmasked"}
    bias = bias_of(forms, np.array([[1, 0]]))
    assert (bias.dtype, bias.min()) == (np.float16, -65504)
    model = onnx.load_model_from_string(forms.models["bias"])
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"Shape", "Range"}


def test_positions_are_left_to_the_kernel_and_no_shape_is_computed(forms):
    for form, content in forms.models.items():
        kinds = {node.op_type for node in onnx.load_model_from_string(content).graph.node}
        assert "EmbedLayerNormalization" in kinds
        assert not kinds & {"Shape", "Range"}, form


def test_a_model_in_another_form_has_the_plain_form_alone(bert):
    forms = attention.forms(lower(bert, "onnx").path)
    assert (list(forms.models), forms.mask) == (["plain"], None)
    assert "not in the fused form" in forms.why


def test_a_computed_mask_has_the_plain_form_alone(lowered, tmp_path):
    forms = attention.forms(with_computed_mask(lowered, tmp_path / "computed.onnx"))
    assert list(forms.models) == ["plain"]
    assert "is not one of its inputs" in forms.why


def test_roberta_counts_its_positions_from_its_ids(tmp_path):
    """Positions that do not start at 0 stay in the graph."""
    graph = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 17, "isorun.fused": 1]>
        g (int64[B,S] ids, int64 length, float[9,8] word, float[9,8] position, float[8] gamma, float[8] beta)
          => (float[B,S,8] out)
        <int64 start = {2}, int64 step = {1}>
        {
          row = Range (start, length, step)
          out = isorun.fused.EmbedLayerNormalization <epsilon = 1e-5>
            (ids, "", row, word, position, "", gamma, beta)
        }
        """
    )
    onnx.save(graph, tmp_path / "offset.onnx")
    model = onnx.load_model_from_string(attention.forms(tmp_path / "offset.onnx").models["plain"])
    assert "Range" in {node.op_type for node in model.graph.node}
    assert model.graph.node[-1].input[8]
