"""The packed form for ``ort-cuda``: its numbers by ONNX's reference evaluator with an implementation of the kernel's
definition, its operators by ONNX Runtime's schemas, and which masks it is taken for. No GPU has run it."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import contrib_ops
import cuda_forms
import exports
import tiny
from cuda_forms import BATCH, CPU, SEQUENCE, cpu_session, feeds_with, whole_session, with_computed_mask
from fake_device_memory import HostMemory
from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.models import checkpoint as checkpoints
from isorun.parity.samples import MASKS
from isorun.plugin import registry
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import CompileConfig, RuntimeReport
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.onnxruntime.cuda import attention
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device
from isorun_backends.onnxruntime.cuda.packing import Packing


def lower(path, precision="fp32", packed=True, outputs=None):
    return cuda_forms.lower(path, precision=precision, packed=packed, outputs=outputs)


@pytest.fixture(scope="module")
def lowered(bert):
    return lower(bert)


@pytest.fixture(scope="module")
def forms(lowered):
    return attention.forms(lowered.path)


def with_weights(content, lowered, path):
    """A form beside its weights, as ONNX Runtime finds them by an entry of its configuration."""
    target = lowered.path.parent / path
    target.write_bytes(content)
    return target


@pytest.fixture(scope="module")
def evaluators(bert):
    """The packed form in fp32 and in fp16."""
    by_precision = {}
    for precision in ("fp32", "fp16"):
        half = lower(bert, precision)
        packed = attention.forms(half.path).models["packed"]
        model = onnx.load(with_weights(packed, half, "packed-form.onnx"))
        by_precision[precision] = ReferenceEvaluator(model, new_ops=contrib_ops.OPERATORS)
    return by_precision


@pytest.fixture(scope="module")
def expected(bert):
    """The model as it came, in fp32, with zeros for padding."""
    session = whole_session(lower(bert, packed=False))

    def run(feeds):
        hidden, pooled = session.run(["last_hidden_state", "pooler_output"], feeds)
        return [np.where(feeds["attention_mask"][:, :, None] != 0, hidden, 0), pooled]

    return run


def first_is_a_key(mask):
    mask = mask.copy()
    mask[:, 0] = 1
    return mask


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("precision", "most"), [("fp32", 2e-5), ("fp16", 2e-2)])
@pytest.mark.parametrize("kind", MASKS)
def test_the_packed_form_gives_the_models_answer(forms, evaluators, expected, kind, precision, most):
    mask = first_is_a_key(MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(1)))
    feeds = feeds_with(mask)
    outputs = evaluators[precision].run(["last_hidden_state", "pooler_output"], {**feeds, **forms.packing.places(mask)})
    for output, reference in zip(outputs, expected(feeds), strict=True):
        assert np.isfinite(output).all(), "something read a token that no row has"
        np.testing.assert_allclose(output.astype(np.float32), reference, atol=most)


@pytest.mark.parametrize(("precision", "most"), [("fp32", 2e-5), ("fp16", 2e-2)])
def test_a_last_layer_of_one_position_keeps_its_own_attention(bert, expected, precision, most):
    lowered = lower(bert, precision, outputs=["pooler_output"])
    forms = attention.forms(lowered.path)
    model = onnx.load(with_weights(forms.models["packed"], lowered, "packed-form.onnx"))
    kinds = [node.op_type for node in model.graph.node]
    layers = tiny.CONFIG["num_hidden_layers"]
    assert (kinds.count("PackedMultiHeadAttention"), kinds.count("MultiHeadAttention")) == (layers - 1, 1)
    evaluator = ReferenceEvaluator(model, new_ops=contrib_ops.OPERATORS)
    for make in MASKS.values():
        mask = first_is_a_key(make(BATCH, SEQUENCE, np.random.default_rng(1)))
        feeds = feeds_with(mask)
        (pooled,) = evaluator.run(None, {**feeds, **forms.packing.places(mask)})
        np.testing.assert_allclose(pooled.astype(np.float32), expected(feeds)[1], atol=most)


@given(data=st.data(), batch=st.integers(1, 5), width=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_any_mask_that_is_allowed(forms, evaluators, expected, data, batch, width, seed):
    rows = st.lists(st.sampled_from([0, 1, 1]), min_size=width, max_size=width)
    mask = first_is_a_key(np.array(data.draw(st.lists(rows, min_size=batch, max_size=batch))))
    feeds = feeds_with(mask, seed)
    outputs = evaluators["fp32"].run(["last_hidden_state", "pooler_output"], {**feeds, **forms.packing.places(mask)})
    for output, reference in zip(outputs, expected(feeds), strict=True):
        np.testing.assert_allclose(output, reference, atol=5e-5)


@given(st.data(), st.integers(1, 40), st.integers(1, 130))
def test_where_tokens_are(data, batch, width):
    kept = data.draw(st.floats(0, 1))
    mask = (np.random.default_rng(batch * width).random((batch, width)) < kept).astype(np.int64)
    mask[:, 0] = 1
    packing = Packing("attention_mask", (0,))
    places = packing.places(mask)
    tokens, total = int(mask.sum()), places["padding.kept"].shape[1]
    assert tokens <= total <= mask.size
    assert (places["padding.kept"][0, :tokens] == np.flatnonzero(mask)).all()
    assert (places["padding.kept_positions"] == places["padding.kept"] % width).all()
    assert places["padding.cumulative_length"].tolist() == [0, *np.cumsum(mask.sum(axis=1))]
    assert sorted(places["padding.token_offset"].flat) == list(range(mask.size))
    assert (places["padding.places"][mask == 0] == total).all()


def test_batches_of_a_shape_have_few_numbers_of_tokens():
    """So that CUDA graphs are met again."""
    packing = Packing("attention_mask", (0,))
    for batch, width in ((1, 5), (1, 128), (8, 125), (8, 128), (9, 111), (32, 384)):
        seen = set()
        for tokens in range(batch, batch * width + 1, max(1, batch * width // 2000)):
            mask = np.zeros((batch, width), np.int64)
            mask[:, 0] = 1
            mask.flat[:tokens] = 1
            seen.add(packing.places(mask)["padding.kept"].shape[1])
        assert len(seen) <= 32


def test_which_masks_the_packed_form_takes(forms):
    rows = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    assert attention.choose(rows, forms.packing) == "packed"
    assert attention.choose(rows[:, ::-1], forms.packing) == "plain", "the pooler reads a position that is no key"
    assert attention.choose(np.array([[1, 1], [0, 0]]), forms.packing) == "plain"
    assert attention.choose(np.zeros((0, 4), np.int64), forms.packing) == "plain"


def test_the_graph_has_no_waits_and_one_kernel_for_each_layer(forms):
    kinds = [node.op_type for node in onnx.load_model_from_string(forms.models["packed"]).graph.node]
    assert kinds.count("PackedMultiHeadAttention") == tiny.CONFIG["num_hidden_layers"]
    assert not {"NonZero", "TopK", "CumSum", "MultiHeadAttention", "Range"} & set(kinds)
    assert len(kinds) < len(onnx.load_model_from_string(forms.models["plain"]).graph.node) / 3
    assert forms.recordable == {"packed"}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_onnx_runtime_takes_types_and_shapes_and_lacks_the_kernel_alone(bert, precision):
    model = lower(bert, precision)
    path = with_weights(attention.forms(model.path).models["packed"], model, "schemas.onnx")
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, match="PackedMultiHeadAttention"):
        onnxruntime.InferenceSession(str(path), providers=CPU)


def test_a_model_without_a_pooler(tmp_path, expected):
    path = tmp_path / "plain.onnx"
    checkpoints.build(tiny.write_checkpoint(tmp_path / "checkpoint", tiny.weights(pooler=False)), path)
    model = lower(path)
    forms = attention.forms(model.path)
    packed = onnx.load(with_weights(forms.models["packed"], model, "packed-form.onnx"))
    mask = first_is_a_key(MASKS["holes"](BATCH, SEQUENCE, np.random.default_rng(2)))
    feeds = feeds_with(mask)
    evaluator = ReferenceEvaluator(packed, new_ops=contrib_ops.OPERATORS)
    (hidden,) = evaluator.run(["last_hidden_state"], {**feeds, **forms.packing.places(mask)})
    np.testing.assert_allclose(hidden, expected(feeds)[0], atol=2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["albert", "bert-sequence", "distilbert-token", "electra-qa", "roberta-sequence", "xlm-r-token"]
)
def test_every_architecture_is_packed(tmp_path, name):
    folder = exports.checkpoint(name, tmp_path)
    path = tmp_path / "built.onnx"
    checkpoints.build(folder, path)
    packed, padded = lower(path), lower(path, packed=False)
    forms = attention.forms(packed.path)
    mask = first_is_a_key(MASKS["holes"](BATCH, SEQUENCE, np.random.default_rng(4)))
    feeds = {
        name: array.astype(np.int64)
        for name, array in feeds_with(mask).items()
        if any(spec.name == name for spec in packed.info.inputs)
    }
    names = [spec.name for spec in packed.info.outputs]
    session = whole_session(padded)
    model = onnx.load(with_weights(forms.models["packed"], packed, "packed-form.onnx"))
    outputs = ReferenceEvaluator(model, new_ops=contrib_ops.OPERATORS).run(
        names, {**feeds, **forms.packing.places(mask)}
    )
    for label, output, reference in zip(names, outputs, session.run(names, feeds), strict=True):
        if output.shape[:2] == mask.shape:
            reference[mask == 0] = 0
        np.testing.assert_allclose(output, reference, atol=5e-5, err_msg=label)


def test_an_export_whose_own_names_are_alike(tmp_path):
    """LayoutLM: a table made for its positions is an initializer of the domain's name."""
    label = "layoutlm-torchscript17-sdpa-fixed"
    path = tmp_path / "export.onnx"
    path.write_bytes(exports.content(label))
    packed = lower(path)
    forms = attention.forms(packed.path)
    feeds = exports.given(label)
    feeds["attention_mask"] = first_is_a_key(feeds["attention_mask"])
    model = onnx.load(with_weights(forms.models["packed"], packed, "packed-form.onnx"))
    values = [value.name for value in (*model.graph.input, *model.graph.initializer)]
    assert len(values) == len(set(values))
    evaluator = ReferenceEvaluator(model, new_ops=contrib_ops.OPERATORS)
    real = feeds["attention_mask"] != 0
    hidden = evaluator.run(None, {**feeds, **forms.packing.places(feeds["attention_mask"])})[0]
    np.testing.assert_allclose(hidden[real], exports.run(exports.content(label), feeds)[0][real], atol=5e-5)


def test_relative_positions_have_no_packed_form(tmp_path):
    path = tmp_path / "built.onnx"
    checkpoints.build(exports.checkpoint("mpnet", tmp_path), path)
    forms = attention.forms(lower(path).path)
    assert list(forms.models) == ["plain"]
    assert forms.why == "its padding is removed, and its layers add a bias to their scores"


def test_a_computed_mask_has_no_packed_form(lowered, tmp_path):
    forms = attention.forms(with_computed_mask(lowered, tmp_path / "computed.onnx"))
    assert (list(forms.models), forms.packing, forms.recordable) == (["plain"], None, frozenset())
    assert forms.why == "its padding is removed, and its mask 'twice' is not one of its inputs"


def test_a_bias_on_scores_has_no_packed_form(lowered, tmp_path):
    model = onnx.load(lowered.path)
    node = next(candidate for candidate in model.graph.node if candidate.op_type == "PackedAttention")
    node.input.extend([node.input[0]] * 4)
    onnx.save(model, tmp_path / "biased.onnx")
    assert attention.forms(tmp_path / "biased.onnx").why.endswith("its layers add a bias to their scores")


def test_forms_are_asked_for_by_name(lowered, monkeypatch):
    driver = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.driver", lambda: driver)
    backend = registry.get("ort-cuda")
    with pytest.raises(BackendUnavailable, match=r"'lengths' does not apply .* padding is removed"):
        backend.compile(lowered, CompileConfig(options={"attention": "lengths"}))
    with pytest.raises(BackendUnavailable, match=r"CUDA graph.*'plain' waits .* padding='keep'"):
        backend.compile(lowered, CompileConfig(options={"attention": "plain", "cuda_graphs": 2}))


class FakeSession:
    """The packed form by the reference evaluator, where the executable expects a session of ONNX Runtime's."""

    def __init__(self, evaluator):
        self.evaluator, self.ran = evaluator, 0

    def io_binding(self):
        binding = SimpleNamespace(feeds={}, names={}, outputs=[])
        binding.bind_cpu_input = binding.feeds.__setitem__
        binding.bind_output = lambda name, *_: binding.names.setdefault(name)
        binding.get_outputs = lambda: [SimpleNamespace(numpy=lambda array=array: array) for array in binding.outputs]
        return binding

    def run_with_iobinding(self, binding, _=None):
        binding.outputs = self.evaluator.run(list(binding.names), binding.feeds)
        self.ran += 1


@pytest.fixture
def opened(lowered, forms, evaluators):
    def make(wanted="auto"):
        packed = FakeSession(evaluators["fp32"])

        def open_form(form, stream=None):
            if form == "packed":
                return packed
            return cpu_session(forms.models[form], lowered)

        def describe(sessions, _):
            return RuntimeReport("host", "fp32", {}, {}, {"forms": list(sessions)})

        masks = Masks(forms.mask, wanted, forms.packing, forms.recordable)
        device = Device("cpu", 0)
        return CudaExecutable("ort-cuda", open_form, lowered.info, device, masks, describe, HostMemory), packed

    return make


def test_each_batch_takes_the_form_that_is_right_for_it(opened, expected):
    executable, packed = opened()
    assert executable.report().details["forms"] == ["packed"]
    for kind, runs in (("right", 1), ("left", 1), ("none", 2), ("masked-row", 2)):
        feeds = feeds_with(MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(5)))
        for output, reference in zip(executable.run(None, feeds), expected(feeds), strict=True):
            np.testing.assert_allclose(output, reference, atol=2e-5)
        assert packed.ran == runs, kind


def test_a_binding_reads_its_mask_at_every_run(opened, expected):
    executable, packed = opened()
    feeds = feeds_with(MASKS["right"](BATCH, SEQUENCE, np.random.default_rng(5)))
    binding = executable.bind(feeds, {"pooler_output": None})
    for kind in ("right", "left", "none"):
        feeds["attention_mask"][...] = MASKS[kind](BATCH, SEQUENCE, np.random.default_rng(6))
        np.testing.assert_allclose(binding.run()[0], expected(feeds)[1], atol=2e-5)
    assert packed.ran == 2


def test_a_mask_on_the_device_is_not_packed(opened):
    executable, _ = opened("packed")
    feeds = feeds_with(np.ones((1, 8), np.int64))
    array = feeds["attention_mask"]
    feeds["attention_mask"] = DeviceArray(array.ctypes.data, array.shape, array.dtype, owner=array)
    with pytest.raises(InvalidFeeds, match="'attention_mask' on the host, but it is on the device"):
        executable.run_on_device(None, feeds)
    with pytest.raises(InvalidFeeds, match=r"'packed'.*it requires a real token at each position"):
        executable.run(None, feeds_with(np.array([[0, 1]])))
    assert opened()[0].form(feeds) == "plain"
