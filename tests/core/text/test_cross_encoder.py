"""``isorun.CrossEncoder`` against recorded answers of sentence-transformers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import isorun
import sentence_models
import tiny
from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from isorun.models import checkpoint
from sentence_models import WORDS

TOLERANCE = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.mark.parametrize("labels", [1, 3])
def test_equals_sentence_transformers(
    labels: int, tokenizer: Path, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", labels)
    with isorun.CrossEncoder(folder, backend="ort-cpu") as encoder:
        scores = encoder.predict(WORDS)
        np.testing.assert_allclose(scores, golden[f"scores-{labels}"], atol=TOLERANCE)
        np.testing.assert_allclose(asyncio.run(encoder.apredict(WORDS)), scores, atol=TOLERANCE)
        assert encoder.labels == [f"class {index}" for index in range(labels)]
        if labels == 3:
            shares = encoder.predict(WORDS, softmax=True)
            with pytest.raises(InvalidArgument, match="softmax"):
                encoder.predict(WORDS, softmax="no")
            np.testing.assert_allclose(shares, np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True), rtol=1e-5)
            with pytest.raises(UnsupportedModel, match="one label, got one with 3"):
                encoder.rank("a", ["b"])


def test_rank_sorts_documents(tokenizer: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    documents = ["bread", "a man", "eats a man"]
    with isorun.CrossEncoder(folder, backend="ort-cpu", activation="Identity") as encoder:
        scores = encoder.predict([("man", document) for document in documents])
        ranked = encoder.rank("man", documents)
        assert [document.position for document in ranked] == np.argsort(-scores).tolist()
        assert ranked[0].text == documents[ranked[0].position]
        assert ranked[0].score == max(scores)
        assert encoder.rank("man", documents, top_k=1) == ranked[:1]


def test_rejects_models_without_logits_and_unknown_activations(minilm_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="no output 'logits'"):
        isorun.CrossEncoder(minilm_model, backend="ort-cpu")
    with pytest.raises(InvalidArgument, match="activation 'softmx'"):
        isorun.CrossEncoder(minilm_model, activation="softmx")


def test_rejects_a_chat_template_without_modules(tokenizer: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    template = folder / "chat_template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=r"chat_template\.jinja has a chat template"):
        isorun.CrossEncoder(folder, backend="ort-cpu")
    with pytest.raises(UnsupportedModel, match=r"applies to an embedder without modules\.json"):
        isorun.Embedder(folder, pooling="mean", backend="ort-cpu")
    with isorun.Classifier(folder, backend="ort-cpu") as classifier:  # as transformers' pipeline
        assert classifier.classify(["a man"])
    saved(folder)
    with isorun.CrossEncoder(folder, backend="ort-cpu") as encoder:
        assert encoder.predict([("man", "bread")]).shape == (1,)


def saved(folder: Path, **fields: object) -> Path:
    """As sentence-transformers 6.2 saves a cross-encoder."""
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    modality = {"text": {"method": "forward", "method_output_name": "logits"}}
    own = {"transformer_task": "sequence-classification", "modality_config": modality, "module_output_name": "scores"}
    for name, content in (
        ("modules.json", [module]),
        ("sentence_bert_config.json", own),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder", **fields}),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("path", "formula"),
    [
        ("activation.Tanh", np.tanh),
        ("linear.Identity", lambda logits: logits),
        ("activation.SiLU", lambda logits: logits / (1 + np.exp(-logits))),
    ],
)
def test_the_model_s_activation_and_default_prompt(
    path: str, formula: Callable[[np.ndarray], np.ndarray], tokenizer: Path, tmp_path: Path
) -> None:
    """From the folder, and from a file that was built from it and is alone."""
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    prompted = [(f"bread {first}", second) for first, second in WORDS]
    with isorun.CrossEncoder(folder, backend="ort-cpu", activation="Identity") as encoder:
        expected = formula(encoder.predict(prompted))
        limit = encoder.max_length
    fields = {"prompts": {"a": "bread "}, "default_prompt_name": "a"}
    saved(folder, activation_fn=f"torch.nn.modules.{path}", **fields)
    (tmp_path / "alone").mkdir()
    checkpoint.build(folder, tmp_path / "alone" / "model.onnx")
    for model in (folder, tmp_path / "alone" / "model.onnx"):
        with isorun.CrossEncoder(model, backend="ort-cpu") as encoder:
            np.testing.assert_allclose(encoder.predict(WORDS), expected, atol=TOLERANCE)
            np.testing.assert_allclose(asyncio.run(encoder.apredict(WORDS)), expected, atol=TOLERANCE)
            assert (encoder.labels, encoder.max_length) == (["class 0"], limit)


def test_rejects_other_activations_and_modules_of_the_model(tokenizer: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    saved(folder, activation_fn="torch.nn.modules.activation.PReLU")  # a slope is not saved
    with pytest.raises(UnsupportedModel, match="activation PReLU"):
        isorun.CrossEncoder(folder, backend="ort-cpu")
    saved(folder, activation_fn="torch.nn.modules.activation.GLU")
    with pytest.raises(UnsupportedModel, match="activation GLU"):
        isorun.CrossEncoder(folder, backend="ort-cpu")
    saved(folder, activation_fn="my.Tanh")
    with pytest.raises(UnsupportedModel, match=r"'my\.Tanh'"):
        isorun.CrossEncoder(folder, backend="ort-cpu")
    saved(folder, default_prompt_name="a")
    with pytest.raises(InvalidModel, match="default prompt 'a'"):
        isorun.CrossEncoder(folder, backend="ort-cpu")


@pytest.mark.parametrize(
    ("kind", "architectures", "error"),
    [
        ("bert", ["BertForTokenClassification"], InvalidModel),
        ("bert", None, InvalidModel),
        ("bert", 3, InvalidModel),
        ("t5", ["T5ForSequenceClassification"], UnsupportedModel),
    ],
)
def test_rejects_checkpoints_without_a_head_that_isorun_builds(
    kind: str, architectures: object, error: type[Exception], tokenizer: Path, tmp_path: Path
) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    tiny.changed(folder, model_type=kind, architectures=architectures)
    with pytest.raises(error, match=r"architectures|ForSequenceClassification"):
        isorun.CrossEncoder(folder, backend="ort-cpu")
