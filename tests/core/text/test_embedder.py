"""``isorun.Embedder`` against recorded answers of sentence-transformers (``tests/fixtures/make_sentences.py``)."""

import asyncio
import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import sentence_models
import tiny
from isorun.errors import InvalidArgument, InvalidFeeds, InvalidModel, UnsupportedModel
from isorun.models import checkpoint
from isorun.models.tokenizer import TruncationWarning
from sentence_models import PROMPT, TEXTS

TOLERANCE = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.fixture(scope="module")
def embedder(minilm: Path) -> Iterator[isorun.Embedder]:
    with isorun.Embedder(minilm, backend="ort-cpu", batch_tokens=64) as opened:
        yield opened


def test_equals_sentence_transformers(embedder: isorun.Embedder, golden: dict[str, np.ndarray]) -> None:
    vectors = embedder.embed(TEXTS)
    assert (vectors.dtype, vectors.shape, embedder.max_length) == (np.float32, (len(TEXTS), 384), 256)
    np.testing.assert_allclose(vectors, golden["minilm"], atol=TOLERANCE)
    np.testing.assert_allclose(list(embedder.embed_iter(iter(TEXTS))), golden["minilm"], atol=TOLERANCE)
    np.testing.assert_allclose(asyncio.run(embedder.aembed(TEXTS)), golden["minilm"], atol=TOLERANCE)


def test_long_texts_are_tokenized_off_the_event_loop(
    embedder: isorun.Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings, threads = embedder._encodings, []

    def recorded(*arguments: Any, **options: Any) -> list[Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        return encodings(*arguments, **options)

    monkeypatch.setattr(embedder, "_encodings", recorded)
    for text in ("bread", "bread " * 2000):
        asyncio.run(embedder.aembed([text]))
    assert threads == [True, False]


def test_reads_dense_layers_prompts_and_limits(variant: Path, golden: dict[str, np.ndarray]) -> None:
    with isorun.Embedder(variant, backend="ort-cpu") as embedder:
        with pytest.warns(TruncationWarning, match="more than 24 tokens") as caught:
            vectors = embedder.embed(TEXTS)
        assert {warning.filename for warning in caught} == {__file__}
        np.testing.assert_allclose(vectors, golden["variant"], atol=TOLERANCE)
        unprompted = embedder.embed(TEXTS, prompt_name="document")
        assert abs(unprompted - golden["variant"]).max() > 0.01
        np.testing.assert_array_equal(embedder.embed(TEXTS, prompt=""), unprompted)
        with pytest.raises(InvalidArgument, match=r"prompt 'qery'.*document, own"):
            embedder.embed(TEXTS, prompt_name="qery")
        assert embedder.prompts["own"] == PROMPT


def test_settings_survive_in_an_onnx_file(minilm_model: Path, golden: dict[str, np.ndarray]) -> None:
    with isorun.Embedder(minilm_model, backend="ort-cpu") as embedder:
        np.testing.assert_allclose(embedder.embed(TEXTS), golden["minilm"], atol=TOLERANCE)


def test_dense_layers_and_truncation_survive_in_an_onnx_file(variant: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(variant, tmp_path / "copy")
    tiny.edit(folder / "config_sentence_transformers.json", truncate_dim=5)
    (tmp_path / "alone").mkdir()
    checkpoint.build(folder, tmp_path / "alone" / "model.onnx")
    with isorun.Embedder(variant, backend="ort-cpu") as embedder:
        expected = embedder.embed(TEXTS)[:, :5]
    for model in (folder, tmp_path / "alone" / "model.onnx"):
        with isorun.Embedder(model, backend="ort-cpu") as embedder:
            assert embedder.dimension == 5
            np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=TOLERANCE)
        with isorun.Embedder(model, backend="ort-cpu", truncate_dim=3) as embedder:
            assert embedder.dimension == 3


def test_arguments_replace_settings(minilm: Path, golden: dict[str, np.ndarray]) -> None:
    with isorun.Embedder(
        minilm, backend="ort-cpu", truncate_dim=8, normalize=True, prompts={"a": "A man "}, default_prompt="a"
    ) as embedder:
        (vector,) = embedder.embed(["is eating food."])
        expected = golden["minilm"][0, :8]
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=TOLERANCE)
    with isorun.Embedder(minilm, backend="ort-cpu", pooling=["cls", "max"], normalize=False) as embedder:
        vectors = embedder.embed(TEXTS[:1])
        assert vectors.shape == (1, 768)
        assert np.linalg.norm(vectors) > 2


def test_a_stream_is_read_as_it_is_consumed(embedder: isorun.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    from isorun.text import model

    monkeypatch.setattr(model, "_WINDOW", 4)
    endless = (text for text in itertools.cycle(TEXTS))
    first = list(itertools.islice(embedder.embed_iter(endless), 11))
    np.testing.assert_allclose(first[6:11], first[:5], atol=TOLERANCE)


@pytest.mark.parametrize("texts", ["one", b"one"])
def test_rejects_a_single_text(embedder: isorun.Embedder, texts: str) -> None:
    with pytest.raises(InvalidArgument, match="ut it in a list"):
        embedder.embed(texts)


def test_empty_and_invalid_lists(embedder: isorun.Embedder) -> None:
    assert embedder.embed([]).shape == (0, 384)
    assert asyncio.run(embedder.aembed([])).shape == (0, 384)
    with pytest.raises(InvalidFeeds, match="Text 1 must be a str"):
        embedder.embed(["a", 3])  # type: ignore[list-item]


def test_models_that_nothing_says_how_to_pool(tokenizer: Path, bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bert.read_bytes())
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    with pytest.raises(InvalidModel, match="Pass pooling='mean'"):
        isorun.Embedder(path, backend="ort-cpu")
    with isorun.Embedder(path, backend="ort-cpu", pooling="mean") as embedder:
        assert embedder.embed(["a man eats"]).shape == (1, 32)
    with pytest.raises(InvalidArgument, match="pooling 'average'"):
        isorun.Embedder(path, pooling="average")
    with pytest.raises(InvalidArgument, match="truncate_dim must be at most 32"):
        isorun.Embedder(path, backend="ort-cpu", pooling="mean", truncate_dim=33)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("modules.json", [{"type": "sentence_transformers.models.LSTM", "path": ""}], "type LSTM"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling 'median'"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.GLU"}, "activation GLU"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, r"Use isorun\.CrossEncoder"),
    ],
)
def test_rejects_settings_that_it_does_not_have(
    minilm: Path, tmp_path: Path, file: str, change: object, message: str
) -> None:
    folder = sentence_models.write_variant(minilm, tmp_path / "variant")
    (folder / file).write_text(json.dumps(change))
    with pytest.raises(UnsupportedModel, match=message):
        isorun.Embedder(folder, backend="ort-cpu")


def test_identity_tells_whether_vectors_were_normalized_before_they_were_cut(tmp_path: Path) -> None:
    model, identities = sentence_models.write_sentence_model(tmp_path), set()
    modules = json.loads((model / "modules.json").read_text(encoding="utf-8"))
    normalizes = {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"}
    (model / "modules.json").write_text(json.dumps([*modules, normalizes]))
    for normalize in (None, False, True):
        with isorun.Embedder(model, backend="ort-cpu", truncate_dim=4, normalize=normalize) as embedder:
            identities.add(str(embedder.identity))
    assert len(identities) == 3
