"""The forms of a mask, by ONNX Runtime's CPU kernels of the same operators: equal wherever a form is right, and
never chosen where it is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tiny
from isorun.models import lowering
from isorun.models import source as models
from isorun.parity.samples import MASKS
from isorun.system.cache import Cache
from isorun_backends.onnxruntime.cuda import attention

BATCH, SEQUENCE = 4, 16
LAYERS = tiny.CONFIG["num_hidden_layers"]


@pytest.fixture(scope="module")
def lowered(bert):
    cache = Cache()
    return lowering.lower(models.open_model(bert, cache), ("fused",), cache)


@pytest.fixture(scope="module")
def forms(lowered):
    return attention.forms(lowered.path)


@pytest.fixture(scope="module")
def sessions(lowered, forms):
    def opened(content):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(lowered.path.parent)
        )
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    return {form: opened(content) for form, content in forms.models.items()}


def feeds_with(mask):
    rng = np.random.default_rng(3)
    return {
        "input_ids": rng.integers(0, tiny.VOCABULARY, mask.shape),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, mask.shape),
    }


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("form", ["plain", "bias", "lengths"])
def test_a_form_gives_the_lowered_models_answer_wherever_it_is_allowed(lowered, sessions, kind, form):
    mask = MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(1))
    feeds = feeds_with(mask)
    whole = onnxruntime.InferenceSession(str(lowered.path), providers=["CPUExecutionProvider"])
    expected = whole.run(["last_hidden_state"], feeds)[0]
    found = sessions[form].run(["last_hidden_state"], feeds)[0]
    off = np.abs(found - expected)[mask != 0].max()
    if attention.allows(form, mask):
        assert off < 1e-5
    elif (form, kind) in {("lengths", "left"), ("lengths", "holes")}:
        assert off > 0.01, "the form is refused for a mask that it would have been right for"


@pytest.mark.parametrize("kind", MASKS)
def test_a_last_layer_of_one_position_has_its_own_mask_in_every_form(bert, kind):
    cache = Cache()
    source = models.open_model(bert, cache, ["pooler_output"])
    lowered = lowering.lower(source, ("fused",), cache)
    forms = attention.forms(lowered.path)
    assert list(forms.models) == list(attention.FORMS[:3])
    mask = MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(1))
    feeds = feeds_with(mask)
    (expected,) = onnxruntime.InferenceSession(str(lowered.path), providers=["CPUExecutionProvider"]).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(lowered.path.parent))
    for form, content in forms.models.items():
        kinds = [node.op_type for node in onnx.load_model_from_string(content).graph.node]
        assert (kinds.count("Attention"), kinds.count("MultiHeadAttention")) == (LAYERS - 1, 1)
        if attention.allows(form, mask):
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)


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
    cache = Cache()
    half = lowering.lower(models.open_model(bert, cache), ("fused",), cache, precision="fp16")
    forms = attention.forms(half.path)
    assert set(forms.models) == {"plain", "bias", "lengths"}
    bias = bias_of(forms, np.array([[1, 0]]))
    assert (bias.dtype, bias.min()) == (np.float16, -65504)
    made = onnx.load_model_from_string(forms.models["bias"])
    kinds = {node.op_type for node in made.graph.node}
    assert not kinds & {"Shape", "Range"}


def test_positions_are_left_to_the_kernel_and_no_shape_is_computed(forms):
    for form, content in forms.models.items():
        kinds = {node.op_type for node in onnx.load_model_from_string(content).graph.node}
        assert "EmbedLayerNormalization" in kinds
        assert not kinds & {"Shape", "Range"}, form


def test_a_model_in_another_form_has_the_plain_form_alone(bert):
    cache = Cache()
    lowered = lowering.lower(models.open_model(bert, cache), ("onnx",), cache)
    forms = attention.forms(lowered.path)
    assert (list(forms.models), forms.mask) == (["plain"], None)
    assert "not in the fused form" in forms.why


def test_a_computed_mask_has_the_plain_form_alone(lowered, tmp_path):
    model = onnx.load(lowered.path)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[index] = "twice"
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["attention_mask", "attention_mask"], ["twice"], "twice"))
    onnx.save(model, tmp_path / "computed.onnx")
    forms = attention.forms(tmp_path / "computed.onnx")
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
    made = onnx.load_model_from_string(attention.forms(tmp_path / "offset.onnx").models["plain"])
    assert "Range" in {node.op_type for node in made.graph.node}
    assert made.graph.node[-1].input[8]
