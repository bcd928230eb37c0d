"""Words for masks as transformers' fill-mask pipeline gives them."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import isorun

FAMILIES = ["bert", pytest.param("roberta", marks=pytest.mark.long), "xlmroberta"]


@pytest.mark.parametrize("family", FAMILIES)
def test_fillings(family: str, tasks: Path) -> None:
    folder = tasks / f"{family}-words"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    texts = expected["texts"]
    with isorun.FillMask(folder, backend="ort-cpu") as filler:
        for key, arguments in (("filled", {"top_k": 4}), ("among", {"top_k": 3, "targets": expected["targets"]})):
            for results in (filler.fill(texts, **arguments), asyncio.run(filler.afill(texts, **arguments))):
                for masks, entries in zip(results, expected[key], strict=True):
                    rows = entries if isinstance(entries[0], list) else [entries]
                    for fillings, row in zip(masks, rows, strict=True):
                        assert [(filling.word, filling.id, filling.text) for filling in fillings] == [
                            (entry["token_str"], entry["token"], entry["sequence"]) for entry in row
                        ]
                        scores = [entry["score"] for entry in row]
                        assert [filling.score for filling in fillings] == pytest.approx(scores, abs=1e-5)


def test_the_texts_have_no_padding_tokens(tasks: Path) -> None:
    """As in transformers, which removes them before it decodes, the one in place of the mask included."""
    with isorun.FillMask(tasks / "bert-words", backend="ort-cpu") as filler:
        word = filler.fill(["[MASK]"])[0][0][0].word
        text = f"{word} [MASK] [PAD] [MASK]"
        (masks,) = filler.fill([text], targets=[word, "[PAD]"])
        for fillings, filled in zip(masks, (f"{word} [MASK]", f"[MASK] {word}"), strict=True):
            texts = {filling.word: filling.text for filling in fillings}
            assert texts == {word: f"[CLS] {word} {filled} [SEP]", "[PAD]": f"[CLS] {word} [MASK] [SEP]"}


def test_rejects(tasks: Path) -> None:
    with isorun.FillMask(tasks / "bert-words", backend="ort-cpu") as filler:
        assert filler.mask == "[MASK]"
        with pytest.raises(isorun.InvalidFeeds, match=r"Text 1 has no \[MASK\]"):
            filler.fill(["[MASK] lives", "nothing is missing"])
        wrong = [
            (["unheard-of"], "unheard-of"),
            (["\u2603"], "not in the vocabulary"),
            (["\ud800"], "Unicode"),
            *((kind, "targets") for kind in ("word", [], 5, [5])),
        ]
        for targets, message in wrong:
            with pytest.raises(isorun.InvalidArgument, match=message):
                filler.fill(["[MASK]"], targets=targets)
        with (
            pytest.warns(isorun.TruncationWarning),
            pytest.raises(isorun.InvalidFeeds, match=r"2 \[MASK\], and 1 of them"),
        ):
            filler.fill(["[MASK] " + "long " * filler.max_length + "[MASK]"])
        with pytest.raises(isorun.InvalidArgument, match="top_k"):
            filler.fill(["[MASK]"], top_k=0)
        assert filler.fill([]) == []
        word = filler.fill(["[MASK]"])[0][0][0].word
        chosen = filler.fill(["[MASK]"], targets=[word])
        assert filler.fill(["[MASK]"], targets=(target for target in [word])) == chosen
        assert filler.fill(["[MASK]"], targets=np.array([word])) == chosen
        assert filler.fill(["[MASK]"], targets=["[UNK]"])[0][0][0].word == "[UNK]"
    with pytest.raises(isorun.InvalidModel, match="trained with masks"):
        isorun.FillMask(tasks / "bert-answers", backend="ort-cpu")
