"""Answers as the question-answering pipeline of transformers 4 gives them."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import isorun
import tiny

FAMILIES = ["bert", pytest.param("roberta", marks=pytest.mark.long), "xlmroberta"]


@pytest.fixture(scope="module")
def pairs(tasks: Path) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads((tasks / "texts.json").read_text(encoding="utf-8"))["contexts"]]


@pytest.fixture(scope="module")
def answerer(tasks: Path):
    with isorun.QuestionAnswerer(tasks / "bert-answers", backend="ort-cpu", max_length=48) as opened:
        yield opened


@pytest.mark.parametrize("family", FAMILIES)
def test_answers(family: str, tasks: Path, pairs: list[tuple[str, str]]) -> None:
    folder = tasks / f"{family}-answers"
    settings: tuple[dict, ...] = ({"stride": 8}, {"stride": 16, "no_answer": True})
    with isorun.QuestionAnswerer(folder, backend="ort-cpu", max_length=48) as answerer:
        for arguments, expected in zip(
            settings, json.loads((folder / "expected.json").read_text(encoding="utf-8")), strict=True
        ):
            later = asyncio.run(answerer.aanswer(pairs, top_k=3, **arguments))
            for results in (answerer.answer(pairs, top_k=3, **arguments), later):
                for answers, entries in zip(results, expected, strict=True):
                    assert [(answer.text, answer.start, answer.end) for answer in answers] == [
                        (entry["answer"], entry["start"], entry["end"]) for entry in entries
                    ]
                    scores = [entry["score"] for entry in entries]
                    assert [answer.score for answer in answers] == pytest.approx(scores, abs=1e-5)


def test_a_tokenizer_that_pads_on_the_left_is_refused(tasks: Path, tmp_path: Path) -> None:
    """transformers 4 then puts the context before the question."""
    folder = Path(shutil.copytree(tasks / "roberta-answers", tmp_path / "left"))
    tiny.edit(folder / "tokenizer_config.json", padding_side="left")
    with pytest.raises(isorun.UnsupportedModel, match=r"padding_side='left'.*context first"):
        isorun.QuestionAnswerer(folder, backend="ort-cpu")


def test_an_answer_is_a_part_of_its_context(answerer: isorun.QuestionAnswerer, pairs: list[tuple[str, str]]) -> None:
    for (_, context), answers in zip(pairs, answerer.answer(pairs, top_k=5, max_answer_tokens=2), strict=True):
        assert 0 < len(answers) <= 5
        assert all(context[answer.start : answer.end] == answer.text for answer in answers)


@pytest.mark.parametrize(
    ("pairs", "arguments", "error", "message"),
    [
        (["What?"], {}, isorun.InvalidFeeds, "Text 0.*pair"),
        ([("What?", "this"), ("why " * 30, "that")], {}, isorun.InvalidFeeds, "Text 1.*question"),
        ([("What?", "this " * 60)], {"stride": 44}, isorun.InvalidFeeds, "Text 0.*stride"),
        ([("What?", "this")], {"stride": 50}, isorun.InvalidArgument, "stride"),
        ([("What?", "this")], {"top_k": 0}, isorun.InvalidArgument, "top_k"),
        ([("What?", "this")], {"max_answer_tokens": 0}, isorun.InvalidArgument, "max_answer_tokens"),
    ],
)
def test_rejects(answerer, pairs, arguments, error, message):
    with pytest.raises(error, match=message):
        answerer.answer(pairs, **arguments)


def test_a_question_beside_which_the_context_fits(answerer: isorun.QuestionAnswerer) -> None:
    assert answerer.max_length is not None
    question = "why " * (answerer.max_length // 4 + 1)
    assert answerer.count_tokens((question, "that")) <= answerer.max_length
    assert answerer.answer([(question, "that")]) == answerer.answer([(question, "that")], stride=0)


def test_answers_are_no_longer_than_asked_and_begin_before_they_end(answerer: isorun.QuestionAnswerer) -> None:
    for context, longest in (("a b", 15), ("London is big", 1)):
        ((answers),) = answerer.answer([("Who?", context)], top_k=30, max_answer_tokens=longest)
        assert answers
        for answer in answers:
            assert answer.text == context[answer.start : answer.end] != ""
            assert len(answer.text.split()) <= longest


def test_an_empty_context_has_no_answer(answerer: isorun.QuestionAnswerer) -> None:
    assert answerer.answer([("What?", "")]) == [[]]
    ((none,),) = answerer.answer([("What?", "")], no_answer=True)
    assert (none.text, none.start, none.end) == ("", 0, 0)
    assert answerer.answer([]) == []
