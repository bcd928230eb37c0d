"""Empty texts for a tokenizer that adds no special tokens: the numbers of sentence-transformers, or an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import tiny


def write(folder: Path, head: str, architecture: str, **settings: Any) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tiny.write_checkpoint(folder, tiny.weights(head=head), architectures=[architecture], **settings)
    library = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.save(str(folder / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "encoder", "", "BertModel")


@pytest.mark.parametrize("pooling", ["mean", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_vectors_are_zero(encoder: Path, pooling: str) -> None:
    with isorun.Embedder(encoder, backend="ort-cpu", pooling=pooling) as embedder:
        for texts, empty in ((["", "a b"], 0), (["a", "  "], 1), ([""], 0)):
            vectors = embedder.embed(texts, normalize=True)
            expected = [0.0 if row == empty else 1.0 for row in range(len(texts))]
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), expected, atol=1e-6)
        assert embedder.count_tokens("") == 0


@pytest.mark.parametrize(("pooling", "message"), [("max", "pooling='max' has no value"), ("cls", "no tokens")])
def test_poolings_without_a_value_are_errors(encoder: Path, pooling: str, message: str) -> None:
    with isorun.Embedder(encoder, backend="ort-cpu", pooling=pooling) as embedder:
        for texts in (["a", ""], [" "]):
            with pytest.raises(isorun.InvalidFeeds, match=message):
                embedder.embed(texts)
        assert np.isfinite(embedder.embed(["a", "a b"])).all()


@pytest.mark.parametrize(
    "run",
    [
        lambda folder, texts: isorun.Classifier(folder, backend="ort-cpu").classify(texts),
        lambda folder, texts: isorun.CrossEncoder(folder, backend="ort-cpu").predict(texts),
    ],
)
def test_a_classifier_of_texts_needs_a_token(tmp_path: Path, run: Callable[[Path, list[str]], Any]) -> None:
    folder = write(tmp_path, "sequence", "BertForSequenceClassification", num_labels=3)
    with pytest.raises(isorun.InvalidFeeds, match="The text '' has no tokens"):
        run(folder, ["a", ""])


def test_no_tokens_have_no_classes(tmp_path: Path) -> None:
    folder = write(tmp_path, "token", "BertForTokenClassification", num_labels=3)
    with isorun.TokenClassifier(folder, backend="ort-cpu") as classifier:
        assert classifier.classify([""]) == [[]]
        assert classifier.classify(["", "a"])[0] == []


def test_an_empty_question_of_an_empty_context(tmp_path: Path) -> None:
    folder = write(tmp_path, "question", "BertForQuestionAnswering")
    with isorun.QuestionAnswerer(folder, backend="ort-cpu") as answerer:
        assert answerer.answer([("", "")]) == [[]]
        ((none,),) = answerer.answer([("", "")], no_answer=True, max_answer_tokens=10**30)
        assert (none.text, none.score) == ("", 1.0)
