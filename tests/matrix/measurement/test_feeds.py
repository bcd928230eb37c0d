from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isorun.errors import InvalidFeeds
from isorun.models.sentence_settings import METADATA, SentenceSettings
from isorun.parity.samples import MASKS
from isorun.types import ModelInfo, ModelMetadata, TensorSpec
from isorun_matrix.jobs import Workload
from isorun_matrix.measurement import feeds


def encoder(mask: str) -> ModelInfo:
    inputs = (
        TensorSpec("input_ids", "tensor(int64)", ("batch", "sequence"), bounds=(0, 99)),
        TensorSpec(mask, "tensor(int64)", ("batch", "sequence")),
    )
    return ModelInfo(inputs, (), 17, mask=mask)


BERT = encoder("attention_mask")
PIXELS = TensorSpec("pixels", "tensor(float)", ("batch", 3, "side", "side"))
IMAGE = ModelInfo((PIXELS,), (), 17)


WORKLOAD = Workload(
    id="m/2x8",
    model="m",
    batch=2,
    sequence=8,
    dims={},
    lengths="full",
    texts=None,
    feeds=3,
    masks=["none", "left"],
    seed=0,
    backend="reference",
    precision="fp64",
    time_limit=9,
)


def make(
    info: ModelInfo, origin: str = "nowhere/model.onnx", **changes: Any
) -> tuple[dict[str, feeds.Arrays], list[str]]:
    return feeds.make(replace(WORKLOAD, **changes), origin, info)


def test_timed_feeds_differ_and_are_followed_by_masks() -> None:
    cases, notes = make(BERT)
    assert list(cases) == ["feeds-0", "feeds-1", "feeds-2", "mask-none", "mask-left"]
    assert feeds.timed(cases) == ["feeds-0", "feeds-1", "feeds-2"]
    ids = {cases[name]["input_ids"].tobytes() for name in cases}
    assert len(ids) == len(cases)
    assert cases["feeds-0"]["attention_mask"].all()
    assert not cases["mask-left"]["attention_mask"][:, 0].all()
    assert notes == []
    again, _ = make(BERT)
    reseeded, _ = make(BERT, seed=1)
    assert np.array_equal(cases["feeds-0"]["input_ids"], again["feeds-0"]["input_ids"])
    assert not np.array_equal(cases["feeds-0"]["input_ids"], reseeded["feeds-0"]["input_ids"])


def test_a_list_of_lengths_is_assigned_to_rows_in_turn() -> None:
    cases, _ = make(BERT, lengths=[1, 5, 8])
    rows = np.concatenate([cases[name]["attention_mask"].sum(axis=1) for name in feeds.timed(cases)])
    assert rows.tolist() == [1, 5, 8, 1, 5, 8]


@pytest.mark.parametrize(
    "lengths",
    [
        {"distribution": "lognormal", "median": 4, "sigma": 0.5, "min": 2, "max": 6, "seed": 0},
        {"distribution": "uniform", "min": 2, "max": 6, "seed": 0},
    ],
)
def test_lengths_of_a_distribution(lengths: dict[str, Any]) -> None:
    cases, _ = make(BERT, lengths=lengths, feeds=50)
    rows = np.concatenate([cases[name]["attention_mask"].sum(axis=1) for name in feeds.timed(cases)])
    assert set(rows) == {2, 3, 4, 5, 6}
    reseeded, _ = make(BERT, lengths={**lengths, "seed": 1}, feeds=50)
    assert any(
        not np.array_equal(cases[n]["attention_mask"], reseeded[n]["attention_mask"]) for n in feeds.timed(cases)
    )


def test_a_model_without_a_mask_has_no_padding() -> None:
    cases, _ = make(IMAGE, sequence=None, dims={"side": 5})
    assert list(cases) == ["feeds-0", "feeds-1", "feeds-2"]
    assert cases["feeds-0"]["pixels"].shape == (2, 3, 5, 5)
    with pytest.raises(InvalidFeeds, match="mask"):
        make(IMAGE, lengths=[3], dims={"side": 5})


def test_tokens() -> None:
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert feeds.tokens({"input_mask": mask}, WORKLOAD, ModelInfo((), (), 17, mask="input_mask")) == 3
    assert feeds.tokens({"input_mask": mask}, WORKLOAD, ModelInfo((), (), 17)) == 16
    assert feeds.tokens({}, replace(WORKLOAD, sequence=None), ModelInfo((), (), 17)) is None


@pytest.fixture
def origin(tmp_path: Path) -> str:
    """A model's path, with a tokenizer of a few words beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "man": 3, "eats": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "model.onnx")


def test_texts_are_tokenized_and_used_in_turn(origin: str) -> None:
    cases, notes = make(BERT, origin, texts=["a man eats", "a man", "a"], feeds=2, masks=[])
    assert cases["feeds-0"]["input_ids"].tolist() == [[2, 3, 4, 0, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0]]
    assert cases["feeds-1"]["attention_mask"].sum(axis=1).tolist() == [1, 3]
    assert notes == []


@pytest.mark.parametrize("mask", ["attention_mask", "input_mask"])
def test_masks_of_a_model_with_texts_have_their_tokens(mask: str, origin: str) -> None:
    cases, _ = make(encoder(mask), origin, texts=["a man eats", "a man"], feeds=1, masks=list(MASKS))
    for kind in MASKS:
        masked = cases[f"mask-{kind}"]
        for row, text in enumerate([[2, 3, 4], [2, 3]]):
            real = masked["input_ids"][row, masked[mask][row] != 0].tolist()
            assert real == (text * 8)[: len(real)], kind
    assert not cases["mask-left"][mask][:, 0].all()
    assert cases["mask-none"][mask].all()


def test_notes_truncated_texts(origin: str) -> None:
    _, notes = make(BERT, origin, texts=["a man eats"], sequence=2, feeds=1)
    (note,) = set(notes)
    assert note.startswith("feeds-0: Truncated to the maximum of 2 tokens")


def test_texts_are_read_as_an_embedder_reads_them(origin: str) -> None:
    settings = SentenceSettings(max_tokens=3, prompts={"own": "man "}, default_prompt="own")
    info = replace(BERT, metadata=ModelMetadata(custom_metadata_map={METADATA: settings.to_json()}))
    cases, notes = make(info, origin, texts=["a man eats", "a"], feeds=1, masks=[])
    assert cases["feeds-0"]["input_ids"].tolist() == [[3, 2, 3, *[0] * 5], [3, 2, *[0] * 6]]
    assert "maximum of 3 tokens" in notes[0]


def test_rejects_texts_that_do_not_fit_the_model(origin: str) -> None:
    with pytest.raises(InvalidFeeds, match=r"Model 'm' cannot be fed texts: .* no tokenizer beside it"):
        make(BERT, texts=["a"])
    with pytest.raises(InvalidFeeds, match="model needs pixels"):
        make(replace(BERT, inputs=(*BERT.inputs, PIXELS)), origin, texts=["a"])


def test_arrays_are_saved_and_loaded(tmp_path: Path) -> None:
    groups = {"a": {"x": np.arange(3), "file": np.ones((2, 2), np.float16)}, "ab": {"x": np.zeros(0)}}
    feeds.save(tmp_path / "kept.npz", groups)
    back = feeds.load(tmp_path / "kept.npz", "a")
    assert set(back) == {"x", "file"}
    assert back["x"].tolist() == [0, 1, 2]
    assert back["file"].dtype == np.float16
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


@pytest.mark.parametrize("damage", [None, b"", b"x" * 99, "cut", "flipped", "array"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes | str | None) -> None:
    path = tmp_path / "feeds.npz"
    feeds.save(path, {"a": {"x": np.arange(999)}})
    whole = path.read_bytes()
    path.unlink()
    if damage == "array":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif damage is not None:
        cut = whole[:-50] if damage == "cut" else whole[:500] + bytes([whole[500] ^ 255]) + whole[501:]
        path.write_bytes(damage if isinstance(damage, bytes) else cut)
    with pytest.raises(InvalidFeeds, match=r"feeds\.npz is missing or damaged .* --resume"):
        feeds.load(path, "a")
