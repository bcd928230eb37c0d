"""Checkpoints become fused graphs that compute what the paper's formulas say."""

import json
import re
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numpy_bert
import tiny
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import checkpoint, sentence_settings
from isorun.system.cache import Cache

ARCHITECTURES = {
    "": "BertModel",
    "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "question": "BertForQuestionAnswering",
}


def outputs(path: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fused graph itself, in ONNX Runtime: nothing of isorun between."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_is_the_bert(path, tensors, *, config=tiny.CONFIG, head="", atol=1e-5):
    for kind in tiny.MASKS:
        feeds = tiny.feeds(3, 9, kind=kind)
        expected = numpy_bert.run(config, tensors, feeds, head)
        results = outputs(path, feeds)
        assert list(results) == list(expected)
        for name, array in expected.items():
            assert results[name].dtype == np.float32
            np.testing.assert_allclose(results[name], array, rtol=0, atol=atol, err_msg=f"{name}, mask {kind}")


@pytest.mark.parametrize("pooler", [True, False])
def test_the_graph_computes_a_bert(tmp_path, pooler):
    tensors = tiny.weights(pooler=pooler)
    folder = tiny.write_checkpoint(tmp_path / "tiny", tensors)
    assert checkpoint.build(folder, tmp_path / "bert.onnx") == []
    assert_is_the_bert(tmp_path / "bert.onnx", tensors)


@pytest.mark.parametrize("head", ["sequence", "token", "question"])
def test_heads(tmp_path, head):
    tensors = tiny.weights(head=head, pooler=head == "sequence")
    labels = {str(number): f"LABEL_{number}" for number in range(tiny.LABELS)}
    stored = {name if "classifier" in name or "qa_" in name else f"bert.{name}": t for name, t in tensors.items()}
    folder = tiny.write_checkpoint(tmp_path / "tiny", stored, architectures=[ARCHITECTURES[head]], id2label=labels)
    assert checkpoint.build(folder, tmp_path / "bert.onnx") == []
    assert_is_the_bert(tmp_path / "bert.onnx", tensors, head=head)


SETTINGS = [{"hidden_act": name} for name in ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("setting", [*SETTINGS, {"layer_norm_eps": 0.25}], ids=str)
def test_uses_the_settings_of_the_config(tmp_path, setting):
    config = {**tiny.CONFIG, **setting}
    folder = tiny.write_checkpoint(tmp_path / "tiny", config=config)
    checkpoint.build(folder, tmp_path / "bert.onnx")
    assert_is_the_bert(tmp_path / "bert.onnx", tiny.weights(), config=config)
    default = numpy_bert.run(tiny.CONFIG, tiny.weights(), tiny.feeds())["last_hidden_state"]
    assert abs(numpy_bert.run(config, tiny.weights(), tiny.feeds())["last_hidden_state"] - default).max() > 1e-4


def old_name(name: str) -> str:
    return re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("rename", [str, old_name], ids=["new names", "old names"])
@pytest.mark.parametrize("shards", [1, 3])
def test_names_and_shards(tmp_path, prefix, rename, shards):
    tensors = tiny.weights()
    stored = {prefix + rename(name): tensor for name, tensor in tensors.items()}
    folder = tiny.write_checkpoint(tmp_path / "tiny", stored, shards=shards)
    assert checkpoint.build(folder, tmp_path / "bert.onnx") == []
    assert_is_the_bert(tmp_path / "bert.onnx", tensors)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_weights_of_other_types_are_widened(tmp_path, dtype):
    tensors = {name: tensor.astype(dtype) for name, tensor in tiny.weights().items()}
    checkpoint.build(tiny.write_checkpoint(tmp_path / "tiny", tensors), tmp_path / "bert.onnx")
    assert_is_the_bert(tmp_path / "bert.onnx", tensors)


def test_returns_unused_tensors(tmp_path):
    more = {
        "cls.predictions.bias": np.zeros(tiny.VOCABULARY, np.float32),
        "embeddings.position_ids": np.arange(tiny.POSITIONS)[None],
    }
    folder = tiny.write_checkpoint(tmp_path / "tiny", {**tiny.weights(), **more})
    assert checkpoint.build(folder, tmp_path / "bert.onnx") == ["cls.predictions.bias"]


def test_warns_of_layers_beyond_the_config(tmp_path):
    """Each time that a session opens the checkpoint, not when it is built alone."""
    config = {**tiny.CONFIG, "num_hidden_layers": 1}
    tensors = tiny.weights()
    tiny.write_checkpoint(tmp_path / "short", tensors, config=config)
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        with pytest.warns(checkpoint.CheckpointWarning, match=r"16 tensors of layers .*layer\.1\."):
            checkpoint.build_cached(tmp_path / "short", cache)


def test_warns_of_a_head_that_is_omitted_if_all_outputs_are_requested(tmp_path):
    head = {"cls.predictions.bias": np.zeros(3, np.float32)}
    folder = tiny.write_checkpoint(tmp_path / "tiny", {**tiny.weights(), **head}, architectures=["BertForMaskedLM"])
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        with pytest.warns(checkpoint.CheckpointWarning, match=r"head .*'cls\.predictions\.bias'.*outputs="):
            checkpoint.build_cached(folder, cache)
    checkpoint.build_cached(folder, cache, whole=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "prefix", ["model.", "module.", "_orig_mod.", "0.auto_model.", "bert.", "module._orig_mod.bert.", "model.bert."]
)
def test_removes_prefixes_that_all_tensors_have(tmp_path, prefix):
    stored = {prefix + name: tensor for name, tensor in tiny.weights().items()}
    checkpoint.build(tiny.write_checkpoint(tmp_path / "tiny", stored), tmp_path / "bert.onnx")
    assert_is_the_bert(tmp_path / "bert.onnx", tiny.weights())


def test_removes_the_prefix_of_a_whole_classifier(tmp_path):
    tensors = tiny.weights(head="sequence")
    stored = {f"module.{'' if 'classifier' in name else 'bert.'}{name}": tensor for name, tensor in tensors.items()}
    labels = {str(number): f"LABEL_{number}" for number in range(tiny.LABELS)}
    folder = tiny.write_checkpoint(
        tmp_path / "tiny", stored, architectures=["BertForSequenceClassification"], id2label=labels
    )
    assert checkpoint.build(folder, tmp_path / "bert.onnx") == []
    assert_is_the_bert(tmp_path / "bert.onnx", tensors, head="sequence")


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.0.attention.self.query.lora_A.default.weight",
        "encoder.layer.1.output.adapters.a.adapter_down.0.weight",
        "embeddings.more_embeddings.weight",
        "extra.weight",
    ],
)
def test_rejects_tensors_that_are_no_part_of_the_architecture(tmp_path, name):
    tensors = {**tiny.weights(), name: np.zeros((2, 2), np.float32)}
    with pytest.raises(UnsupportedModel, match=re.escape(repr(name))):
        checkpoint.build(tiny.write_checkpoint(tmp_path / "tiny", tensors), tmp_path / "bert.onnx")
    assert not (tmp_path / "bert.onnx").exists()


def test_rejects_an_adapter_beside_the_weights_even_if_it_was_added_later(tmp_path):
    folder, cache = tiny.write_checkpoint(tmp_path / "tiny"), Cache(tmp_path / "cache")
    checkpoint.build_cached(folder, cache)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for build in (
        lambda: checkpoint.build_cached(folder, cache),
        lambda: checkpoint.build(folder, tmp_path / "a.onnx"),
    ):
        with pytest.raises(UnsupportedModel, match=r"adapter_config\.json .*'LORA'.*merge_and_unload"):
            build()


def test_the_graph_is_in_the_fused_form(bert):
    model = onnx.load(bert)
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 17, "isorun.fused": 1}
    fused = [node.op_type for node in model.graph.node if node.domain == "isorun.fused"]
    assert sorted(fused) == sorted(
        ["EmbedLayerNormalization"]
        + 2 * ["SelfAttention", "SkipLayerNormalization", "BiasGelu", "SkipLayerNormalization"]
    )
    assert {function.name for function in model.functions} >= set(fused)
    for value in model.graph.input:
        dims = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        assert (value.type.tensor_type.elem_type, dims) == (onnx.TensorProto.INT64, ["batch", "sequence"])
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]


def test_the_same_checkpoint_gives_the_same_file(request, tmp_path):
    for name in ("one", "two"):
        checkpoint.build(request.getfixturevalue("checkpoint"), tmp_path / f"{name}.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_copies_the_tokenizer(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text('{"a": "tokenizer"}')
    checkpoint.build(folder, tmp_path / "bert.onnx")
    assert (tmp_path / "bert.tokenizer.json").read_text(encoding="utf-8") == '{"a": "tokenizer"}'


def test_records_the_settings_of_a_sentence_model(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 17}))
    checkpoint.build(folder, tmp_path / "bert.onnx")
    notes = {entry.key: entry.value for entry in onnx.load(tmp_path / "bert.onnx").metadata_props}
    settings = sentence_settings.SentenceSettings.from_json(notes[sentence_settings.METADATA])
    assert settings == sentence_settings.SentenceSettings(pooling=("cls",), max_tokens=17)


def test_rebuilds_a_checkpoint_only_when_it_changes(tmp_path):
    cache, folder = Cache(tmp_path / "cache"), tiny.write_checkpoint(tmp_path / "tiny")
    first = checkpoint.build_cached(folder, cache)
    stamp = first.stat().st_mtime_ns
    assert checkpoint.build_cached(folder, cache) == first
    assert first.stat().st_mtime_ns == stamp
    tiny.write_checkpoint(folder, tiny.weights(seed=1))
    assert checkpoint.build_cached(folder, cache) != first
    tiny.write_checkpoint(folder, tiny.weights(seed=1), layer_norm_eps=0.1)
    assert len({first, checkpoint.build_cached(folder, cache)}) == 2


def test_rebuilds_when_a_file_is_added(tmp_path):
    cache, folder = Cache(tmp_path / "cache"), tiny.write_checkpoint(tmp_path / "tiny")
    assert not checkpoint.build_cached(folder, cache).with_name("model.tokenizer.json").exists()
    (folder / "tokenizer.json").write_text("{}")
    assert checkpoint.build_cached(folder, cache).with_name("model.tokenizer.json").exists()


# Bad checkpoints


def assert_refused(folder, *parts: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        checkpoint.build(folder, folder.parent / "refused.onnx")
    for part in parts:
        assert part in str(caught.value)
    left = {path.name for path in folder.parent.iterdir()} - {folder.name, "cache"}
    assert left == set(), "nothing half made is left"


SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [None, 0, -1, 2.5, "32", [], True])
def test_rejects_an_invalid_size(tmp_path, size, value):
    folder = tiny.write_checkpoint(tmp_path / "tiny", **{size: value})
    assert_refused(folder, "config.json", size, repr(value), "above 0")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [7 * 32, 10**9, 10**18, 10**30])
def test_rejects_a_size_that_differs_from_the_tensors(tmp_path, size, value):
    assert_refused(tiny.write_checkpoint(tmp_path / "tiny", **{size: value}), str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model_type": "gpt2"}, ["model_type", "'gpt2'", "bert"]),
        ({"model_type": None}, ["model_type", "None"]),
        ({"model_type": ["bert"]}, ["model_type"]),
        ({"num_attention_heads": 5}, ["hidden_size", "num_attention_heads", "32", "5"]),
        ({"hidden_act": "mish"}, ["hidden_act 'mish'", "gelu"]),
        ({"hidden_act": "gelo"}, ["hidden_act 'gelo'; did you mean 'gelu'"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "'relative_key'"]),
        ({"is_decoder": True}, ["decoder"]),
        ({"layer_norm_eps": "tiny"}, ["layer_norm_eps", "'tiny'"]),
        ({"layer_norm_eps": -1.0}, ["layer_norm_eps", "-1.0"]),
        ({"layer_norm_eps": [1]}, ["layer_norm_eps"]),
        ({"layer_norm_eps": float("nan")}, ["layer_norm_eps", "nan"]),
        ({"architectures": "BertModel"}, ["architectures"]),
        ({"architectures": [3]}, ["architectures"]),
        ({"architectures": ["BertForSequenceClassification"], "id2label": 3}, ["id2label"]),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {}}, ["id2label"]),
        ({"architectures": ["BertForTokenClassification"], "num_labels": "two"}, ["num_labels"]),
        ({"architectures": ["BertForTokenClassification"], "num_labels": -2}, ["num_labels"]),
    ],
)
def test_rejects_invalid_settings(tmp_path, settings, parts):
    assert_refused(
        tiny.write_checkpoint(tmp_path / "tiny", tiny.weights(head="sequence"), **settings), "config.json", *parts
    )


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"3", b"[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_rejects_damaged_json(tmp_path, name, content):
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    (folder / name).write_bytes(content)
    assert_refused(folder, name)


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": 3},
        {"weight_map": {}},
        {"weight_map": {"a": 3}},
        {"weight_map": ["a"]},
        {"weight_map": {"a": ""}},
    ],
)
def test_rejects_an_index_without_files(tmp_path, index):
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(folder, "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "a/b.safetensors", ".."])
def test_rejects_an_index_with_files_outside_the_folder(tmp_path, name):
    folder = tiny.write_checkpoint(tmp_path / "home" / "tiny")
    tiny.write_safetensors(tmp_path / "outside.safetensors", tiny.weights())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert_refused(folder, "index.json", name, "outside its folder")


def test_rejects_a_missing_shard(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "tiny", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert_refused(folder, "model-00002-of-00003.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_rejects_a_folder_without_config_or_weights(tmp_path, name):
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    (folder / name).rename(folder / "other")
    assert_refused(folder, str(folder), f"no {name}")
    with pytest.raises(InvalidModel, match=name):
        checkpoint.build_cached(folder, Cache(tmp_path / "cache"))


@pytest.mark.parametrize("name", sorted(tiny.weights()))
def test_rejects_a_missing_or_misshapen_tensor(tmp_path, name):
    tensors = tiny.weights()
    if name != "pooler.dense.weight":  # without it, there is no pooler
        one_less = {key: tensor for key, tensor in tensors.items() if key != name}
        assert_refused(tiny.write_checkpoint(tmp_path / "tiny", one_less), f"no tensor {name!r}")
    shape = tensors[name].shape
    tensors[name] = tensors[name][:-1]
    folder = tiny.write_checkpoint(tmp_path / "tiny", tensors)
    assert_refused(folder, repr(name), str(tensors[name].shape), str(shape))


def test_rejects_a_sequence_classifier_without_a_pooler(tmp_path):
    tensors = tiny.weights(head="sequence", pooler=False)
    folder = tiny.write_checkpoint(tmp_path / "tiny", tensors, architectures=["BertForSequenceClassification"])
    assert_refused(folder, "needs a pooler")


def test_rejects_tensors_of_other_types(tmp_path):
    name = "pooler.dense.bias"
    tensors = {**tiny.weights(), name: np.zeros(tiny.WIDTH, np.int64)}
    assert_refused(tiny.write_checkpoint(tmp_path / "tiny", tensors), name, "I64", "F32")


@pytest.mark.parametrize("what", ["nan", "infinity"])
def test_accepts_nonfinite_weights(tmp_path, what):
    """A checkpoint may hold them; what it then computes is for parity to judge."""
    tensors = tiny.weights()
    tensors["pooler.dense.bias"][0] = float(what)
    assert checkpoint.build(tiny.write_checkpoint(tmp_path / "tiny", tensors), tmp_path / "bert.onnx") == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 2**62), st.sampled_from(["cut", "flip in the header", "length"]))
def test_rejects_damaged_safetensors(tmp_path_factory, number, damage):
    folder = tiny.write_checkpoint(tmp_path_factory.mktemp("damaged") / "tiny")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    match damage:
        case "cut":
            content = content[: number % len(content)]
        case "length":
            content[:8] = (number if number != header - 8 else 0).to_bytes(8, "little")
        case _:
            content[8 + number % (header - 8)] = 0
    path.write_bytes(content)
    assert_refused(folder, str(folder))
