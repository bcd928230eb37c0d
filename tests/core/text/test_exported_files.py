"""ONNX files that other tools exported, beside the settings of their checkpoint."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import isorun
import served
import tiny
from isorun.models import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")

TEXTS = ["My name is Sarah and I live in London.", "word"]


def exported(source: Path, path: Path) -> Path:
    """A checkpoint as an ONNX file that does not say where it is from, without a tokenizer of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.build(source, Path(folder, "built.onnx"))
        model = onnx.load(Path(folder, "built.onnx"))
    del model.metadata_props[:]
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", ["bert-classes-multi_label_classification", "bert-classes-regression"])
def test_the_settings_above_a_folder_of_onnx_files_count(name: str, tasks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tasks / name, tmp_path / "model")
    path = exported(folder, folder / "onnx" / "model.onnx")
    with isorun.Classifier(folder, backend="ort-cpu") as expected, isorun.Classifier(path, backend="ort-cpu") as file:
        np.testing.assert_allclose(file.scores(TEXTS), expected.scores(TEXTS), rtol=1e-5)
        assert file.labels == expected.labels
    tiny.edit(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    with isorun.CrossEncoder(path, backend="ort-cpu") as encoder:
        pairs = [("who?", text) for text in TEXTS]
        np.testing.assert_array_equal(encoder.predict(pairs), encoder.predict(pairs, activation="Identity"))


def test_settings_above_a_file_with_its_own_tokenizer_are_not_its_own(tasks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tasks / "bert-classes-regression", tmp_path / "model")
    path = exported(folder, folder / "other" / "model.onnx")
    shutil.copy(folder / "tokenizer.json", path.parent)
    with isorun.Classifier(path, backend="ort-cpu") as classifier:
        assert 0 < classifier.scores(["a"]).min() < 1  # of a regression, any number


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_logits_of_words_are_pooled_as_the_settings_say(
    strategy: str, activation: str, retrieval: Path, retrieved: list[str], tmp_path: Path
) -> None:
    plain = exported(retrieval / "base", tmp_path / "plain" / "model.onnx")
    folder = shutil.copytree(retrieval / "splade", tmp_path / "splade")
    tiny.edit(
        folder / "1_SpladePooling" / "config.json",
        pooling_strategy=strategy,
        activation_function=activation,
        chunk_size=2,
    )
    with isorun.SparseEmbedder(folder, backend="ort-cpu") as embedder:
        expected = embedder.embed(retrieved).to_dense()
    shutil.copy(plain, folder / "model.onnx")
    with isorun.SparseEmbedder(folder / "model.onnx", backend="ort-cpu") as embedder:
        np.testing.assert_allclose(embedder.embed(retrieved).to_dense(), expected, rtol=1e-4, atol=1e-4)


def test_a_file_for_another_task_is_refused(tasks: Path, tmp_path: Path) -> None:
    classes, entities = (
        exported(shutil.copytree(tasks / name, tmp_path / name), tmp_path / name / "model.onnx")
        for name in ("bert-classes-None", "bert-entities")
    )
    for path, kinds in (
        (classes, (isorun.SparseEmbedder, isorun.FillMask, isorun.TokenClassifier)),
        (entities, (isorun.SparseEmbedder, isorun.FillMask, isorun.Classifier, isorun.CrossEncoder)),
    ):
        for kind in kinds:
            with pytest.raises(isorun.InvalidModel, match=r"must have \d dimensions|names a model for"):
                kind(path, backend="ort-cpu")  # type: ignore[operator]


@pytest.fixture
def embedder(tmp_path: Path) -> Path:
    return served.write_embedder(tmp_path / "embedder")


def test_layers_of_a_file_with_vectors_of_texts_run_once(embedder: Path, tmp_path: Path) -> None:
    path = exported(embedder, tmp_path / "plain" / "model.onnx")
    modules = json.loads((embedder / "modules.json").read_text(encoding="utf-8"))
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    (embedder / "modules.json").write_text(json.dumps(modules))
    random = np.random.default_rng(0)
    weight, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((32, 32), 32))
    activation = "torch.nn.modules.activation.Tanh"
    (embedder / "2_Dense").mkdir()
    fields = {"in_features": 32, "out_features": 32, "bias": True, "activation_function": activation}
    (embedder / "2_Dense" / "config.json").write_text(json.dumps(fields))
    tiny.write_safetensors(embedder / "2_Dense" / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})
    with isorun.Embedder(embedder, backend="ort-cpu") as whole:
        expected = whole.embed(["a b", "c"])

    model = onnx.load(path)
    graph = model.graph
    constants = {"axes": np.array([1]), "last": np.array([-1]), "weight": weight.T, "bias": bias}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    graph.node.extend(
        [
            helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["real", "last"], ["column"]),
            helper.make_node("Mul", ["last_hidden_state", "column"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axes"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["real", "axes"], ["count"], keepdims=1),
            helper.make_node("Div", ["total", "count"], ["mean"]),
            helper.make_node("Gemm", ["mean", "weight", "bias"], ["linear"]),
            helper.make_node("Tanh", ["linear"], ["tanh"]),
            helper.make_node("LpNormalization", ["tanh"], ["sentence_embedding"], axis=1, p=2),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 32]))
    onnx.save(model, embedder / "model.onnx")
    with isorun.Embedder(embedder / "model.onnx", backend="ort-cpu") as file:
        np.testing.assert_allclose(file.embed(["a b", "c"]), expected, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pooling", ["mean", "weightedmean", "mean_sqrt_len_tokens"])
def test_states_in_half_precision_are_pooled_in_single_precision(pooling: str, embedder: Path) -> None:
    model = onnx.load(exported(embedder, embedder / "model.onnx"))
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.float32(64), "factor"))
    graph.node.append(helper.make_node("Mul", ["last_hidden_state", "factor"], ["large"]))
    graph.node.append(helper.make_node("Cast", ["large"], ["half"], to=TensorProto.FLOAT16))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("half", TensorProto.FLOAT16, ["batch", "sequence", 32]))
    onnx.save(model, embedder / "model.onnx")
    text = " ".join("abcdefghij" * 2)
    with isorun.Embedder(embedder, pooling=pooling, backend="ort-cpu") as whole:
        expected = whole.embed([text, "a"])
    with isorun.Embedder(embedder / "model.onnx", pooling=pooling, backend="ort-cpu") as file:
        np.testing.assert_allclose(file.embed([text, "a"]), expected, atol=1e-3)
        if pooling != "weightedmean":
            assert np.isfinite(file.embed_parts(text, [(0, len(text)), (0, 9)])).all()


def test_texts_are_cut_to_the_length_of_a_file_for_one_length(tasks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tasks / "bert-classes-None", tmp_path / "model")
    model = onnx.load(exported(folder, folder / "model.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == "sequence":
                dimension.dim_value = 16
    onnx.save(model, folder / "model.onnx")
    with isorun.Classifier(folder / "model.onnx", backend="ort-cpu") as classifier:
        assert classifier.max_length == 16
        assert classifier.scores(["word", "word " * 40]).shape == (2, 3)
        with pytest.raises(isorun.InvalidArgument, match="max_length must be at most 16"):
            classifier.limit_length(17)
        with pytest.raises(isorun.InvalidArgument, match="max_length must exceed the 2 special tokens"):
            classifier.limit_length(2)
    with pytest.raises(isorun.InvalidArgument, match="max_length must exceed the 2 special tokens"):
        isorun.Classifier(folder, max_length=1, backend="ort-cpu")


def test_pooling_is_rejected_for_an_output_that_is_pooled(tasks: Path) -> None:
    with pytest.raises(isorun.InvalidArgument, match=r"pooling='mean' has no effect: .* as 'pooler_output'"):
        isorun.Embedder(tasks / "bert-classes-None", outputs=["pooler_output"], pooling="mean", backend="ort-cpu")


def test_a_side_of_truncation_is_part_of_what_vectors_depend_on(embedder: Path) -> None:
    path, records = exported(embedder, embedder / "model.onnx"), []
    for side in ("right", "left"):
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": side}
        (embedder / "tokenizer_config.json").write_text(json.dumps(settings))
        with isorun.Embedder(path, backend="ort-cpu") as opened:
            records.append(opened.identity.tokenizer)
    assert records[0] != records[1]


def test_a_tokenizer_of_the_folder_comes_before_one_above(tasks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tasks / "bert-classes-None", tmp_path / "models" / "bert")
    words = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    shutil.copy(tasks / "xlmroberta-classes-None" / "tokenizer.json", folder.parent)
    with isorun.Classifier(folder, backend="ort-cpu") as classifier:
        assert classifier.tokenizer.path == folder / "vocab.txt"
