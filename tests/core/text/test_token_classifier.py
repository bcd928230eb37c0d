"""Entities as transformers' token-classification pipeline finds them."""

import asyncio
import itertools
import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

import isorun
import tiny
from isorun.models.tokenizer import TruncationWarning
from isorun.text import Tokenizer
from isorun.text.entities import STRATEGIES, Entity

FAMILIES = ["bert", pytest.param("roberta", marks=pytest.mark.long), "xlmroberta"]


@pytest.fixture(scope="module")
def texts(tasks: Path) -> list[str]:
    listed: list[str] = json.loads((tasks / "texts.json").read_text(encoding="utf-8"))["texts"]
    return listed


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def classifier(family: str, tasks: Path):
    with isorun.TokenClassifier(tasks / f"{family}-entities", backend="ort-cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(family: str, tasks: Path) -> dict[str, list]:
    return dict(json.loads((tasks / f"{family}-entities" / "expected.json").read_text(encoding="utf-8")))


def assert_same(classified: list[Entity], expected: list[dict]) -> None:
    assert [(entity.label, entity.word, entity.start, entity.end) for entity in classified] == [
        (entry.get("entity", entry.get("entity_group")), entry["word"], entry["start"], entry["end"])
        for entry in expected
    ]
    assert [entity.score for entity in classified] == pytest.approx([entry["score"] for entry in expected], abs=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities(classifier, expected, texts, strategy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        classified = classifier.classify(texts, strategy=strategy)
    for entities, entries in zip(classified, expected[strategy], strict=True):
        assert_same(entities, entries)
        if strategy == "none":
            assert [entity.position for entity in entities] == [entry["index"] for entry in entries]


@pytest.mark.parametrize("number", [0, 1])
def test_windows_of_a_long_text(classifier, expected, texts, number):
    (classified,) = classifier.classify(texts[-1:], stride=(0, 8)[number])
    assert_same(classified, expected["windows"][number])


def test_any_order_and_async(classifier, texts):
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    shuffled = [texts[position] for position in order]
    plain = classifier.classify(texts, stride=4)
    again = dict(zip(order, classifier.classify(shuffled, stride=4), strict=True))
    later = asyncio.run(classifier.aclassify(texts, stride=4))
    for position, entities in enumerate(plain):
        for others in (again[position], later[position]):
            assert [entity[:1] + entity[2:] for entity in others] == [entity[:1] + entity[2:] for entity in entities]
            assert [entity.score for entity in others] == pytest.approx([entity.score for entity in entities], abs=1e-5)
    assert asyncio.run(classifier.aclassify([])) == classifier.classify([]) == []


def test_every_label_can_be_kept_or_ignored(classifier, texts):
    everything = classifier.classify(texts[:1], strategy="none", ignore_labels=())[0]
    assert len(everything) == classifier.count_tokens(texts[0]) - 2
    labels = [label.split("-")[-1] for label in classifier.labels]
    assert classifier.classify(texts[:1], ignore_labels=labels)[0] == []
    assert classifier.classify(texts[:2], ignore_labels=iter(labels)) == [[], []]


def test_a_cut_text_is_reported(classifier, texts):
    with pytest.warns(TruncationWarning, match="64"):
        (cut,) = classifier.classify(texts[-1:])
    assert max(entity.end for entity in cut) < len(texts[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "averge"}, "average"),
        ({"strategy": "none", "stride": 4}, "strategy"),
        ({"stride": 62}, "stride.*62"),
        ({"stride": -1}, "stride"),
        ({"ignore_labels": "O"}, "ignore_labels"),
        ({"ignore_labels": None}, "ignore_labels"),
        ({"ignore_labels": ["O", "B-PER"]}, "ignore_labels 'B-PER'; did you mean 'PER'"),
        ({"ignore_labels": ["PER"], "strategy": "none"}, "ignore_labels 'PER'"),
    ],
)
def test_rejects_arguments(classifier, arguments, message):
    with pytest.raises(isorun.InvalidArgument, match=message):
        classifier.classify(["text"], **arguments)


def test_a_model_without_the_head(tasks: Path) -> None:
    with pytest.raises(isorun.InvalidModel, match="use Classifier"):
        isorun.TokenClassifier(tasks / "bert-words", backend="ort-cpu")


def test_an_added_token_is_the_vocabularys_word_whatever_it_takes(tmp_path: Path) -> None:
    """As in transformers: ``<ent>`` takes the space before it, so it is shorter than its characters: a subword."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "word"]
    library = tokenizers.Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    library.add_tokens([tokenizers.AddedToken("<ent>", lstrip=True, normalized=False)])
    folder = tiny.write_checkpoint(
        tmp_path / "entities", tiny.weights(head="token"), architectures=["BertForTokenClassification"], num_labels=3
    )
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    text = "a word b <ent> c"
    assert [token.text for token in Tokenizer(folder).encode([text])[0][1:-1]] == ["a", "word", "b", "<ent>", "c"]
    with isorun.TokenClassifier(folder, backend="ort-cpu") as classifier:
        (tokens,) = classifier.classify([text], strategy="none")
        (classified,) = classifier.classify([text], strategy="first")
    assert [(token.word, token.start, token.end) for token in tokens[2:4]] == [("b", 7, 8), ("<ent>", 8, 14)]
    firsts = [*tokens[:2], tokens[2]._replace(word="b <ent>", end=14), tokens[4]]
    groups = [list(group) for _, group in itertools.groupby(firsts, lambda token: token.label)]
    assert [entity[:1] + entity[2:5] for entity in classified] == [
        (group[0].label, " ".join(token.word for token in group), group[0].start, group[-1].end) for group in groups
    ]
    scores = [np.mean([token.score for token in group]) for group in groups]
    assert [entity.score for entity in classified] == pytest.approx(scores, abs=1e-6)
