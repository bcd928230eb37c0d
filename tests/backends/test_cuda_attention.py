"""The forms of a mask, by ONNX Runtime's CPU kernels of the same operators: equal wherever a form is right, and
never chosen where it is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from isorun.models import checkpoint as checkpoints
from isorun.models import lowering
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun.testing.feeds import MASKS
from isorun_backends.onnxruntime.cuda import attention

BATCH, SEQUENCE = 4, 16
LAYERS = tiny.CONFIG["num_hidden_layers"]


@pytest.fixture(scope="module")
def lowered(bert):
    cache = Cache()
    return lowering.lower(models.open_model(bert, cache), ("com.microsoft",), cache)


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
    lowered = lowering.lower(source, ("com.microsoft",), cache)
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


def test_the_bias_reaches_every_query_and_is_of_the_weights_type(forms):
    model = onnx.load_model_from_string(forms.models["bias"])
    inferred = onnx.shape_inference.infer_shapes(model)
    shapes = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
    bias = shapes["isorun.bias.0"]
    assert len(bias.shape.dim) == 4
    assert bias.elem_type == onnx.TensorProto.FLOAT
    for node in model.graph.node:
        if node.op_type == "Attention":
            assert (node.input[3], node.input[5]) == ("", "isorun.bias.0")


def test_an_fp16_graph_has_every_form_and_its_bias_ends_where_fp16_does(bert):
    cache = Cache()
    half = lowering.lower(models.open_model(bert, cache), ("com.microsoft",), cache, precision="fp16")
    forms = attention.forms(half.path)
    assert set(forms.models) == {"plain", "bias", "lengths"}
    made = onnx.load_model_from_string(forms.models["bias"])
    lowest = next(each for each in made.graph.initializer if each.name == "isorun.bias.0.lowest")
    assert onnx.numpy_helper.to_array(lowest) == np.float16(-65504)
    kinds = {node.op_type for node in made.graph.node}
    assert not kinds & {"Shape", "Range"}


def test_positions_are_left_to_the_kernel_and_no_shape_is_computed(forms):
    for form, content in forms.models.items():
        kinds = {node.op_type for node in onnx.load_model_from_string(content).graph.node}
        assert "EmbedLayerNormalization" in kinds
        assert not kinds & {"Shape", "Range"}, form


def test_a_model_without_such_attention_has_the_plain_form_alone(bert):
    cache = Cache()
    lowered = lowering.lower(models.open_model(bert, cache), ("onnx",), cache)
    forms = attention.forms(lowered.path)
    assert (list(forms.models), forms.mask) == (["plain"], None)
    assert "not com.microsoft.Attention" in forms.why


def test_a_computed_mask_has_the_plain_form_alone(lowered, tmp_path):
    model = onnx.load(lowered.path, load_external_data=False)
    cast = next(node for node in model.graph.node if node.input and node.input[0] == "attention_mask")
    twice = onnx.helper.make_node("Mul", ["attention_mask", "attention_mask"], ["twice"], "twice")
    model.graph.node.insert(0, twice)
    cast_again = next(node for node in model.graph.node if node.output == cast.output)
    cast_again.input[0] = "twice"
    onnx.save(model, tmp_path / "computed.onnx")
    forms = attention.forms(tmp_path / "computed.onnx")
    assert list(forms.models) == ["plain"]
    assert "is not one of its inputs" in forms.why


def test_roberta_counts_its_positions_from_its_ids(tmp_path):
    """Positions that do not start at 0 stay in the graph."""
    graph = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
        g (int32[B,S] ids, int64 length, float[9,8] word, float[9,8] position, float[8] gamma, float[8] beta)
          => (float[B,S,8] out)
        <int64 start = {2}, int64 step = {1}>
        {
          row = Range (start, length, step)
          positions = Cast <to = 6> (row)
          out, count = com.microsoft.EmbedLayerNormalization (ids, "", word, position, "", gamma, beta, "", positions)
        }
        """
    )
    onnx.save(graph, tmp_path / "offset.onnx")
    made = onnx.load_model_from_string(attention.forms(tmp_path / "offset.onnx").models["plain"])
    assert [node.op_type for node in made.graph.node] == ["Range", "Cast", "EmbedLayerNormalization"]
    assert made.graph.node[-1].input[8] == "positions"


def test_a_tiny_checkpoint_of_another_seed_has_forms_too(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "other", pooler=False)
    path = tmp_path / "other.onnx"
    checkpoints.build(folder, path)
    cache = Cache()
    lowered = lowering.lower(models.open_model(path, cache), ("com.microsoft",), cache)
    assert attention.forms(lowered.path).mask == "attention_mask"
