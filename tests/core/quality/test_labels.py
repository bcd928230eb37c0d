"""What vectors score by labels."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isorun.errors import InvalidArgument
from isorun.quality import labels
from isorun.quality.labels import Labels

COUNT, WIDTH = 60, 16


def written(folder: Path, lines: Sequence[Any]) -> Path:
    path = folder / "labels.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def pairs(count: int = COUNT) -> list[Any]:
    return [{"texts": ["pivot", f"text {index}"], "score": index / 10} for index in range(count)]


def queries(count: int = COUNT) -> list[Any]:
    relevant = [{"query": f"query {index}", "relevant": [f"document {index}"]} for index in range(count)]
    return [*relevant, {"document": "another"}, {"document": "document 0"}]


def classes(count: int = COUNT) -> list[Any]:
    return [{"text": f"text {index}", "class": "even" if index % 2 == 0 else "odd"} for index in range(count)]


def test_rejects_a_key_twice(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"text": "a", "class": "b"}\n\n{"text": "a", "class": "b", "class": "c"}\n')
    with pytest.raises(InvalidArgument, match=r"labels\.jsonl, line 3: duplicate key 'class'. Keep one"):
        labels.read(path)


def vectors_of(read: Labels) -> np.ndarray:
    """Vectors that agree with the labels."""
    random = np.random.default_rng(0)
    vectors = 0.05 * random.standard_normal((len(read.texts), WIDTH))
    for place, text in enumerate(read.texts):
        number = int(text.split()[-1]) if text[-1].isdigit() else 0
        if read.kind == "pairs":
            angle = 0 if text == "pivot" else np.pi * (1 - number / COUNT) / 2
            vectors[place] = np.eye(WIDTH)[0] * np.cos(angle) + np.eye(WIDTH)[1] * np.sin(angle)
        elif read.kind == "queries":
            vectors[place] += np.random.default_rng([1, number] if text != "another" else 2).standard_normal(WIDTH)
        else:
            vectors[place, number % 2] += 1
    return vectors


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("lines", "names"),
    [(pairs, ["Spearman"]), (queries, ["nDCG@10", "recall@10"]), (classes, ["accuracy", "F1"])],
)
def test_scores_of_each_kind(tmp_path: Path, lines: Any, names: list[str]) -> None:
    if lines is queries:
        pytest.importorskip("ir_measures")
    read = labels.read(written(tmp_path, lines()))
    right = vectors_of(read)
    same = read.compare(right, right)
    assert list(same.figures) == names
    assert all(figure == pytest.approx(1, abs=0.01) for figure in same.figures.values())
    assert (same.kept.value, same.kept.high) == (1, 1)
    assert 0.9 < same.kept.low < 1  # so many labels cannot show that nothing is lost
    assert same.shortfall(0.9) == ""

    worse = read.compare(right, right + 0.8 * np.random.default_rng(3).standard_normal(right.shape))
    assert worse.kept.low < worse.kept.value < 1
    assert worse.value == pytest.approx(worse.kept.value * worse.base)
    assert names[0] in worse.shortfall(0.99)


def test_the_gain_of_a_ranking_is_that_of_its_definition(tmp_path: Path) -> None:
    """Each query's only relevant document is the second one of its ranking."""
    pytest.importorskip("ir_measures")
    read = labels.read(written(tmp_path, queries()))
    vectors = np.zeros((len(read.texts), COUNT + 1))
    for query, document in read.rows:
        vectors[query, read.documents.index(document)] = 0.9
        vectors[document, read.documents.index(document)] = 1
    another = read.texts.index("another")
    vectors[another, read.documents.index(another)] = 1
    vectors[[query for query, _ in read.rows], read.documents.index(another)] = 1
    measured = read.measure(vectors)
    assert measured.figures["nDCG@10"] == pytest.approx(1 / np.log2(3))
    assert measured.figures["recall@10"] == 1


def test_a_query_does_not_find_itself(tmp_path: Path) -> None:
    """Its own text would be the nearest document. It counts where it is listed as relevant."""
    pytest.importorskip("ir_measures")
    linked = [{"query": f"text {index}", "relevant": [f"text {index ^ 1}"]} for index in range(30)]
    read = labels.read(written(tmp_path, linked))
    numbers = [int(text.split()[-1]) for text in read.texts]
    vectors = np.eye(15, WIDTH)[[number // 2 for number in numbers]]
    vectors[:, -1] = [0.3 * (number % 2) for number in numbers]
    assert read.measure(vectors).figures["nDCG@10"] == 1
    own = [{"query": f"text {index}", "relevant": [f"text {index}"]} for index in range(30)]
    assert labels.read(written(tmp_path, own)).measure(vectors).figures["nDCG@10"] == 1


def test_f1_is_the_mean_over_classes(tmp_path: Path) -> None:
    """One of thirty texts is of a rare class and voted into the other: accuracy hides it, F1 does not."""
    lines = [{"text": f"text {index}", "class": "rare" if index == 0 else "common"} for index in range(30)]
    read = labels.read(written(tmp_path, lines))
    figures = read.measure(np.ones((30, 2))).figures
    assert figures["accuracy"] == pytest.approx(29 / 30)
    assert figures["F1"] == pytest.approx((2 * 29 / 59 + 0) / 2)


def test_labels_that_do_not_fit_the_model(tmp_path: Path) -> None:
    read = labels.read(written(tmp_path, pairs()))
    opposite = vectors_of(read)
    opposite[read.texts.index("pivot")] *= -1
    with pytest.raises(InvalidArgument):
        read.compare(opposite, opposite)


@pytest.mark.parametrize("lines", [pairs(), classes()])
def test_what_is_listed_again_counts_once(tmp_path: Path, lines: list[Any]) -> None:
    once, again = labels.read(written(tmp_path, lines)), labels.read(written(tmp_path, lines * 20))
    vectors = vectors_of(once)
    near = vectors + 0.3 * np.random.default_rng(1).standard_normal(vectors.shape)
    assert again.compare(vectors, near) == once.compare(vectors, near)


def test_a_pair_in_the_other_order_counts_once(tmp_path: Path) -> None:
    mirrored = [{**line, "texts": line["texts"][::-1]} for line in pairs()]
    once, again = (labels.read(written(tmp_path, lines)) for lines in (pairs(), [*pairs(), *mirrored]))
    assert again.rows == once.rows
    with pytest.raises(InvalidArgument):
        labels.read(written(tmp_path, [*pairs(), {**mirrored[0], "score": -1}]))
    with pytest.raises(InvalidArgument):
        labels.read(written(tmp_path, [*pairs(12), *mirrored[:12]]))


@pytest.mark.parametrize("kind", [pairs, queries, classes])
def test_rounding_has_no_order(tmp_path: Path, kind: Any) -> None:
    """Vectors of few directions, several of which are equal: other lengths change no score."""
    if kind is queries:
        pytest.importorskip("ir_measures")
    lines = kind()
    if kind is pairs:
        lines = [{"texts": [f"text {index % 5}", f"other {index}"], "score": index % 7} for index in range(COUNT)]
    read = labels.read(written(tmp_path, lines))
    directions = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    vectors = directions[[sum(map(ord, text)) % 3 for text in read.texts]]
    expected = read.measure(vectors)
    for seed in range(4):
        factors = np.random.default_rng(seed).uniform(0.5, 2, (len(vectors), 1)).astype(np.float32)
        measured = read.measure(vectors * factors)
        assert measured.figures == expected.figures
        rows = np.arange(0, len(read.rows), 2)
        assert measured.of_rows(rows) == expected.of_rows(rows) or np.isnan(expected.of_rows(rows))


def test_a_query_on_several_lines_has_all_of_their_documents(tmp_path: Path) -> None:
    """Its own text too, where it is listed as relevant."""
    lines = [{"query": f"text {index}", "relevant": [f"text {index}", f"document {index}"]} for index in range(30)]
    divided = [{**line, "relevant": [document]} for line in lines for document in line["relevant"]]
    merged, several = labels.read(written(tmp_path, lines)), labels.read(written(tmp_path, divided))
    assert [[several.texts[place] for place in row] for row in several.rows] == [
        [merged.texts[place] for place in row] for row in merged.rows
    ]


def test_vectors_that_are_all_equal_fit_no_labels(tmp_path: Path) -> None:
    read = labels.read(written(tmp_path, pairs()))
    with pytest.raises(InvalidArgument, match="do not fit"):
        read.compare(np.ones((len(read.texts), 4)), np.ones((len(read.texts), 4)))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        pairs(3),
        [*pairs(), {**pairs()[0], "score": -1}],
        [*pairs(), *classes()],
        [{"text": f"text {index}", "class": "same"} for index in range(COUNT)],
        [{**line, "score": (1, 1.0)[index % 2]} for index, line in enumerate(pairs())],
        [*pairs(), {"texts": ["one"], "score": 1}],
        [*pairs(), {"texts": ["one", "two"], "score": "high"}],
        [*pairs(), {"texts": ["one", "two"], "score": float("nan")}],
        [*pairs(), {"texts": ["one", "two"], "score": 10**400}],
        [*pairs(), {"texts": ["one", "two"], "score": True}],
        [*pairs(), {"document": "of no query"}],
        [*pairs(), {"texts": ["one", "\ud800"], "score": 1}],
        [*classes(), {"text": "text", "class": ["odd"]}],
        [*classes(), {"text": "text 0", "class": "odd"}],
        [*queries(), {"query": "nothing", "relevant": []}],
        [*queries(), {"query": "text", "relevant": "text"}],
        [*classes(), {"text": "", "class": "odd"}],
        [*classes(), ["text", "odd"]],
        [*classes(), {"text": "a", "class": "odd", "more": 1}],
    ],
)
def test_rejects_wrong_files(tmp_path: Path, lines: Sequence[Any]) -> None:
    with pytest.raises(InvalidArgument):
        labels.read(written(tmp_path, lines))


@pytest.mark.parametrize(
    ("lines", "size"),
    [(pairs(), "60 pairs, 61 texts"), (queries(), "60 queries, 121 texts"), (classes(), "60 texts of 2 classes")],
)
def test_says_how_many_labels_there_are(tmp_path: Path, lines: Sequence[Any], size: str) -> None:
    assert labels.read(written(tmp_path, lines)).size == size


def test_rejects_a_file_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("text\todd\n")
    with pytest.raises(InvalidArgument):
        labels.read(path)
