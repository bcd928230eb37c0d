"""Classes as transformers' text-classification pipeline gives them."""

import asyncio
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import isorun
import sentence_models
import tiny
from isorun.models.tokenizer import TruncationWarning

NAMES = [
    "bert-classes-None",
    "bert-classes-multi_label_classification",
    "bert-classes-regression",
    pytest.param("bert-classes-single_label_classification", marks=pytest.mark.long),
    pytest.param("roberta-classes-None", marks=pytest.mark.long),
    pytest.param("xlmroberta-classes-None", marks=pytest.mark.long),
]


def assert_same(found: list[list], expected: list[list[dict]]) -> None:
    for classes, entries in zip(found, expected, strict=True):
        assert [name for name, _ in classes] == [entry["label"] for entry in entries]
        assert [score for _, score in classes] == pytest.approx([entry["score"] for entry in entries], abs=1e-5)


@pytest.mark.parametrize("built", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pairs(name: str, built: bool, tasks: Path, tmp_path: Path) -> None:
    model, samples = tasks / name, json.loads((tasks / "texts.json").read_text(encoding="utf-8"))
    expected = json.loads((model / "expected.json").read_text(encoding="utf-8"))
    if built:
        from isorun.models import checkpoint

        checkpoint.build(model, tmp_path / "model.onnx")
        model = tmp_path / "model.onnx"
    with isorun.Classifier(model, backend="ort-cpu") as classifier, warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        assert_same(classifier.classify(samples["texts"], top_k=None), expected["texts"])
        pairs = asyncio.run(classifier.aclassify([tuple(pair) for pair in samples["contexts"]], top_k=None))
        assert_same(pairs, expected["pairs"])
        best = classifier.classify(samples["texts"])
        assert [classes[0].label for classes in best] == [entries[0]["label"] for entries in expected["texts"]]
        assert {len(classes) for classes in best} == {1}
        assert classifier.scores(samples["texts"]).shape == (len(samples["texts"]), len(classifier.labels))


def test_a_pair_with_an_empty_text_is_a_pair(tasks: Path) -> None:
    """As training and sentence-transformers tokenize it; transformers' pipeline makes a single text of it."""
    model = tasks / "bert-classes-None"
    with isorun.Classifier(model, backend="ort-cpu") as classifier:
        assert classifier.count_tokens(("a text", "")) == classifier.count_tokens("a text") + 1
        pair, single = classifier.scores([("a text", "")]), classifier.scores(["a text"])
    assert np.abs(pair - single).max() > 1e-4
    with isorun.CrossEncoder(model, backend="ort-cpu", activation="Softmax") as encoder:
        np.testing.assert_allclose(encoder.predict([("a text", "")]), pair, atol=1e-6)


def test_another_function(tasks: Path) -> None:
    with isorun.Classifier(tasks / "bert-classes-None", backend="ort-cpu", function="none") as classifier:
        logits = classifier.scores(["a text"])
    with isorun.Classifier(tasks / "bert-classes-None", backend="ort-cpu") as classifier:
        assert classifier.scores(["a text"]).sum() == pytest.approx(1)
        assert classifier.scores(["a text"]).argmax() == logits.argmax()
        for top_k in (0, -1, True, 1.5):
            with pytest.raises(isorun.InvalidArgument, match="top_k"):
                classifier.classify(["a text"], top_k=top_k)  # type: ignore[arg-type]
    with pytest.raises(isorun.InvalidArgument, match="softmax"):
        isorun.Classifier(tasks / "bert-classes-None", function="sofmax")


@pytest.mark.parametrize("problem", [None, "single_label_classification", "multi_label_classification"])
def test_one_class_is_not_always_certain(problem: str | None, tokenizer: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "model", 1)
    tiny.changed(folder, problem_type=problem)
    with isorun.Classifier(folder, backend="ort-cpu") as classifier:
        logits = classifier.scores(["a man", "bread"], function="none")
        np.testing.assert_allclose(classifier.scores(["a man", "bread"]), 1 / (1 + np.exp(-logits)), rtol=1e-5)


def test_an_unknown_problem(tasks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tasks / "bert-classes-None", tmp_path / "model")
    tiny.changed(folder, problem_type="ranking")
    with pytest.raises(isorun.InvalidModel, match=r"problem_type.*ranking"):
        isorun.Classifier(folder, backend="ort-cpu")
