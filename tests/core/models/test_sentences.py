"""The files of sentence-transformers: what they decide, what is rejected, and where they may be."""

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiny
from isorun.errors import InvalidModel, IsorunError, UnsupportedModel
from isorun.models import checkpoint, sentence_settings, sentences
from isorun.models.activations import ACTIVATIONS
from isorun.models.dense import Dense
from isorun.models.keys import LIMITS
from isorun.models.sentence_settings import SentenceSettings
from isorun.system.cache import Cache

TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as sentence-transformers 6.2 saves it: pooling, a dense layer, normalization."""
    folder = tiny.write_checkpoint(tmp_path / "model")
    kinds = {
        "": TRANSFORMER,
        "1_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "2_Dense": "sentence_transformers.base.modules.dense.Dense",
        "3_Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    }
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())]
    write(folder / "modules.json", modules)
    modality = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    fields = {"transformer_task": "feature-extraction", "modality_config": modality}
    write(folder / "sentence_bert_config.json", {**fields, "module_output_name": "token_embeddings"})
    prompts = {"default_prompt_name": "query", "prompts": {"document": "", "query": "query: "}, "truncate_dim": 8}
    versions = {"__version__": {"sentence_transformers": "6.2.0"}, "model_type": "SentenceTransformer"}
    write(folder / "config_sentence_transformers.json", {**versions, **prompts, "similarity_fn_name": "cosine"})
    write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": "mean"})
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    write(folder / "3_Normalize" / "config.json", names)
    dense = {"in_features": 32, "out_features": 16, "bias": True, **names}
    write(folder / "2_Dense" / "config.json", {**dense, "activation_function": "torch.nn.modules.activation.Tanh"})
    write_dense(folder, {"linear.weight": (16, 32), "linear.bias": (16,)})
    write(folder / "tokenizer_config.json", {"model_max_length": 40, "model_input_names": ["input_ids"]})
    return folder


def write_dense(folder: Path, shapes: dict[str, tuple[int, ...]], dtype: type = np.float32) -> None:
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    tiny.write_safetensors(folder / "2_Dense" / "model.safetensors", tensors)


def test_reads_what_sentence_transformers_6_saves(folder: Path) -> None:
    settings = sentences.read(folder)
    assert (settings.pooling, settings.max_tokens, settings.truncate_dim) == (("mean",), 40, 8)
    assert (settings.prompts["query"], settings.default_prompt) == ("query: ", "query")
    dense, last = settings.steps
    assert isinstance(dense, Dense)
    assert (dense.weight.shape, dense.activation, last) == ((16, 32), "Tanh", sentence_settings.NORMALIZE)


def test_dropout_has_no_effect(folder: Path) -> None:
    expected = sentences.read(folder)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules.insert(2, {"type": "sentence_transformers.models.Dropout", "path": "4_Dropout"})
    write(folder / "modules.json", modules)
    write(folder / "4_Dropout" / "config.json", {"dropout": 0.2})
    assert sentences.read(folder).to_json() == expected.to_json()
    write(folder / "4_Dropout" / "config.json", {"rate": 0.2})
    with pytest.raises(UnsupportedModel, match="rate"):
        sentences.read(folder)


def test_a_built_file_keeps_everything(folder: Path, tmp_path: Path) -> None:
    import onnx

    expected = sentences.read(folder)
    checkpoint.build(folder, tmp_path / "model.onnx")
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    shutil.rmtree(folder)
    settings = SentenceSettings.from_json(kept[sentence_settings.METADATA], tmp_path / "model.onnx")
    assert {**vars(settings), "steps": ()} == {**vars(expected), "steps": ()}
    for dense, wanted in zip(settings.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(dense.weight, wanted.weight)
        np.testing.assert_array_equal(dense.bias, wanted.bias)
        assert dense.activation == wanted.activation
    assert json.loads((tmp_path / "model.tokenizer_config.json").read_text(encoding="utf-8"))["model_max_length"] == 40
    (tmp_path / "model.dense.safetensors").write_bytes(b"other")
    with pytest.raises(InvalidModel, match="belongs to another model"):
        SentenceSettings.from_json(kept[sentence_settings.METADATA], tmp_path / "model.onnx")
    (tmp_path / "model.dense.safetensors").unlink()
    with pytest.raises(InvalidModel, match=r"model\.dense\.safetensors, which cannot be read"):
        SentenceSettings.from_json(kept[sentence_settings.METADATA], tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{", "[" * 100_000, '{"pooling": 3}', '{"pooling": ["median"]}', '{"steps": ["lstm"]}'),
        *('{"max_tokens": "a"}', '{"prompts": []}', '{"unknown": 1}', '{"steps": ["dense"], "dense_sha256": "a"}'),
    ],
)
def test_rejects_damaged_metadata(text: str, tmp_path: Path) -> None:
    with pytest.raises(IsorunError, match=r"isorun\.sentences"):
        SentenceSettings.from_json(text, tmp_path / "model.onnx")


UNSUPPORTED = [
    ("modules.json", [{"type": TRANSFORMER, "kwargs": ["task"]}], "kwargs"),
    ("modules.json", [{"type": "custom_st.Transformer"}], "custom_st"),
    (
        "modules.json",
        [{"type": TRANSFORMER}, {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"}],
        "before the pooling",
    ),
    ("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}], "module 0"),
    ("modules.json", [{"type": TRANSFORMER}, {"type": TRANSFORMER}], "module 1"),
    ("config_sentence_transformers.json", {"model_type": "SomeEncoder"}, "model_type"),
    ("config_sentence_transformers.json", {"promts": {}}, "did you mean 'prompts'"),
    ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "SpladePooling"),
    ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs"),
    ("sentence_bert_config.json", {"tokenizer_args": {"padding_side": "left"}}, "tokenizer_args"),
    ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "modality_config"),
    ("1_Pooling/config.json", {"pooling_mode": ["mean", "median"]}, "median"),
    ("1_Pooling/config.json", {"pooling_mode_median": True}, "pooling_mode_median"),
    ("2_Dense/config.json", {"activation_function": "mine.Tanh"}, "mine"),
    ("2_Dense/config.json", {"activation_function": "torch.tanh"}, "tanh"),
    ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "tokens after the pooling"),
    ("2_Dense/config.json", {"module_input_name": "other"}, "module_input_name"),
    ("2_Dense/config.json", {"module_output_name": "token_embeddings"}, "module_output_name"),
    ("3_Normalize/config.json", {"module_output_name": "other"}, "module_output_name"),
]


@pytest.mark.parametrize(("file", "content", "message"), UNSUPPORTED)
def test_rejects_what_it_does_not_support_by_name(folder: Path, file: str, content: Any, message: str) -> None:
    write(folder / file, content)
    with pytest.raises(UnsupportedModel, match=message):
        sentences.read(folder)


FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json")
CONFIGS = ("1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json", "config.json")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("file", [*FILES, *CONFIGS])
@pytest.mark.parametrize("value", [None, 3, 10**400, float("inf"), "text", [], [[1]], {}, {"a": [1]}, True], ids=repr)
def test_a_wrong_type_anywhere_is_no_other_error(folder: Path, file: str, value: Any) -> None:
    original = json.loads((folder / file).read_text(encoding="utf-8"))
    contents = [value, [value]]
    if isinstance(original, dict):
        contents += [{**original, key: value} for key in original]
        contents += [{key: value} for key in ("id2label", "sentence_transformers", "model_input_names")]
    else:
        contents += [[{**original[0], key: value}, *original[1:]] for key in original[0]]
    for content in contents:
        write(folder / file, content)
        try:
            assert isinstance(sentences.read(folder), SentenceSettings)
        except IsorunError as error:
            assert str(error)  # noqa: PT017


@pytest.mark.parametrize("content", [b"\xff", b"[" * 10**6, b'{"a":' * 10**5, b" " * (LIMITS.size + 1), b"1" * 10**6])
def test_rejects_files_that_are_too_deep_or_too_large(folder: Path, content: bytes) -> None:
    (folder / "sentence_bert_config.json").write_bytes(content)
    start = time.monotonic()
    with pytest.raises(InvalidModel, match=r"sentence_bert_config\.json"):
        sentences.read(folder)
    assert time.monotonic() - start < 2


def test_rejects_a_list_of_too_many_modules(folder: Path) -> None:
    module = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    write(folder / "modules.json", [{"type": TRANSFORMER}] + 100_000 * [module])
    with pytest.raises(InvalidModel, match="1 to 64 objects"):
        sentences.read(folder)


@pytest.mark.parametrize(
    "shapes",
    [
        *({"linear.weight": (16,)}, {"linear.weight": (16, 32, 1)}, {"linear.weight": ()}, {"weight": (16, 32)}),
        *({"linear.weight": (16, 32)}, {"linear.weight": (32, 16), "linear.bias": (32,)}),
        *({"linear.weight": (16, 32), "linear.bias": (1,)}, {"linear.bias": (16,)}),
        {"linear.weight": (16, 32), "linear.bias": (16,), "residual.weight": (16, 32)},
    ],
)
def test_rejects_dense_weights_of_other_shapes(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    write_dense(folder, shapes)
    with pytest.raises(InvalidModel, match="must contain a layer's weights"):
        sentences.read(folder)


def test_rejects_dense_weights_of_another_type(folder: Path) -> None:
    write_dense(folder, {"linear.weight": (16, 32), "linear.bias": (16,)}, np.int64)
    with pytest.raises(InvalidModel, match="floating-point type, got int64"):
        sentences.read(folder)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_reads_dense_weights_of_each_floating_point_type(folder: Path, dtype: type) -> None:
    shapes = {"linear.weight": (16, 32), "linear.bias": (16,)}
    write_dense(folder, shapes)
    exact, *_ = sentences.read(folder).layers
    write_dense(folder, shapes, dtype)
    layer, *_ = sentences.read(folder).layers
    for name, tensor in layer.tensors.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, exact.tensors[name].astype(dtype).astype(np.float32))


@pytest.mark.parametrize("path", ["../other/1_Pooling", "/other", "a/../../other", "..", "C:\\other", "a\0b"])
@pytest.mark.parametrize("module", [0, 1, 2])
def test_rejects_paths_out_of_the_folder(folder: Path, path: str, module: int) -> None:
    shutil.copytree(folder, folder.parent / "other")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[module]["path"] = path.replace("/other", str(folder.parent / "other")) if path == "/other" else path
    write(folder / "modules.json", modules)
    with pytest.raises(InvalidModel, match="outside the model's folder"):
        sentences.read(folder)


@pytest.mark.parametrize("path", ["a" * 10_000, "loop/a", "\ud800"])
def test_rejects_paths_that_cannot_be_read(folder: Path, path: str) -> None:
    (folder / "loop").symlink_to("loop")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[2]["path"] = path
    write(folder / "modules.json", modules)
    with pytest.raises(InvalidModel, match="which cannot be read") as caught:
        sentences.read(folder)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["1_Pooling", "2_Dense/model.safetensors", "tokenizer_config.json"])
def test_rejects_links_out_of_the_folder(folder: Path, name: str) -> None:
    target = folder.parent / "elsewhere"
    (folder / name).rename(target)
    (folder / name).symlink_to(target)
    with pytest.raises(InvalidModel, match="outside the model's folder"):
        sentences.read(folder)


def test_rejects_weights_that_are_a_link_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere")
    (folder / "model.safetensors").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(InvalidModel, match="outside the model's folder"):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize("with_config", [True, False])
def test_reads_the_layout_of_the_hub_s_cache(folder: Path, tmp_path: Path, with_config: bool) -> None:
    """Every file of a snapshot is a link to a file of blobs, beside it."""
    if not with_config:
        (folder / "config.json").unlink()
        (folder / "modules.json").unlink()
    expected = sentences.read(folder)
    blobs, snapshot = tmp_path / "repo" / "blobs", tmp_path / "repo" / "snapshots" / "revision"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / f"blob{number}")
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / f"blob{number}", link.parent))
    settings = sentences.read(snapshot)
    assert {**vars(settings), "steps": ()} == {**vars(expected), "steps": ()}
    if with_config:
        assert checkpoint.build_cached(snapshot, Cache(tmp_path / "cache")).is_file()


def test_the_transformer_is_where_modules_json_says(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[0]["path"] = "0_Transformer"
    write(folder / "modules.json", modules)
    write(folder / "0_Transformer" / "tokenizer_config.json", {"model_max_length": 17})
    assert sentences.transformer_folder(folder) == folder / "0_Transformer"
    assert sentences.read(folder).max_tokens == 17


def test_reads_the_older_name_of_the_tokenizer_s_limit(folder: Path) -> None:
    write(folder / "config.json", {**json.loads((folder / "config.json").read_text()), "max_position_embeddings": 64})
    write(folder / "tokenizer_config.json", {"max_len": 17})
    assert sentences.token_limit(folder) == 17


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    values = np.array([-200, -7, -1, -0.5, 0, 0.5, 1, 7, 200], np.float32)
    exact = values.astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-exact))
        expected = {
            "Identity": exact,
            "Tanh": np.tanh(exact),
            "ReLU": np.maximum(exact, 0),
            "Sigmoid": sigmoid,
            "SiLU": exact * sigmoid,
            "LeakyReLU": np.maximum(exact, 0.01 * exact),
            "ReLU6": np.clip(exact, 0, 6),
            "Hardtanh": np.clip(exact, -1, 1),
            "ELU": np.where(exact > 0, exact, np.exp(exact) - 1),
            "Softplus": np.where(exact > 20, exact, np.log1p(np.exp(exact))),
            "Softsign": exact / (1 + np.abs(exact)),
            "GELU": exact * np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in exact]),
            "RReLU": np.maximum(exact, exact * (1 / 8 + 1 / 3) / 2),
            "Hardsigmoid": np.clip(exact / 6 + 0.5, 0, 1),
            "Hardswish": exact * np.clip(exact / 6 + 0.5, 0, 1),
            "Hardshrink": np.where(np.abs(exact) > 0.5, exact, 0),
            "Softshrink": exact - np.clip(exact, -0.5, 0.5),
            "Tanhshrink": exact - np.tanh(exact),
            "CELU": np.where(exact > 0, exact, np.exp(exact) - 1),
            "SELU": 1.0507009873554805 * np.where(exact > 0, exact, 1.6732632423543772 * (np.exp(exact) - 1)),
            "Mish": exact * np.tanh(np.where(exact > 20, exact, np.log1p(np.exp(exact)))),
            "Softmax": np.exp(exact - 200) / np.exp(exact - 200).sum(),
            "Softmin": np.exp(-exact - 200) / np.exp(-exact - 200).sum(),
            "LogSoftmax": exact - 200 - np.log(np.exp(exact - 200).sum()),
            "LogSigmoid": np.where(exact < -20, exact, -np.log1p(np.exp(-exact))),
        }[name]
    with np.errstate(all="raise"):  # an application's: small numbers that become 0 are no error
        computed = ACTIVATIONS[name](values)
    assert computed.dtype == np.float32
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)


def test_small_scores_keep_their_digits() -> None:
    logits = np.array([-8, -11, -16, -18.3, -19.6, -20, -80], np.float32)
    exact = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(ACTIVATIONS["Sigmoid"](logits), exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 30}, 30),
        ({"max_position_embeddings": 50}, 40),
        ({"max_position_embeddings": -1}, 40),  # XLNet's, for no limit
        ({"model_type": "nomic_bert", "n_positions": 20}, 20),
        ({}, 40),
    ],
)
def test_the_model_s_positions_limit_the_tokenizer_s_length(
    folder: Path, config: dict[str, Any], expected: int
) -> None:
    write(folder / "config.json", config)
    assert sentences.read(folder).max_tokens == expected
    write(folder / "sentence_bert_config.json", {"max_seq_length": 35})
    assert sentences.read(folder).max_tokens == 35


def test_default_positions_limit_a_tokenizer_without_a_length(folder: Path) -> None:
    write(folder / "tokenizer_config.json", {})
    write(folder / "config.json", {"model_type": "modernbert"})
    assert sentences.read(folder).max_tokens == 8192


def test_prompts_have_no_effect_without_modules(folder: Path) -> None:
    assert sentences.read(folder).default_prompt == "query"
    (folder / "modules.json").unlink()
    assert sentences.read(folder).default_prompt == "query"  # a lone pooling is isorun's own layout
    shutil.rmtree(folder / "1_Pooling")
    settings = sentences.read(folder)
    assert (settings.default_prompt, settings.truncate_dim, settings.activation) == (None, None, None)
