"""Checkpoints with heads answer as transformers does."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import isorun
import tiny
from archives import FOLDER, unpack
from isorun.graph.tasks import TOKENS, WORDS
from isorun.models import checkpoint, heads

with tarfile.open(FOLDER / "heads.tar.xz") as packed:
    NAMES = sorted({name.partition("/")[0] for name in packed.getnames()})
TOLERANCE = 1e-5  # of 1 + |x|
CPU = "ort-cpu"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("heads", tmp_path_factory.mktemp("heads"))


def assert_answers(folder: Path, backend: str, padding: str) -> None:
    expected = np.load(folder / "expected.npz")
    mask = expected["attention_mask"]
    with isorun.Session(folder, backend, padding=padding, threads=1) as session:
        feeds = {spec.name: expected[spec.name] for spec in session.get_inputs() if spec.name in expected}
        feeds |= {spec.name: np.zeros_like(mask) for spec in session.get_inputs() if spec.name not in feeds}
        names = [spec.name for spec in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
    for name in expected.files:
        if name not in ("input_ids", "attention_mask"):
            kept = mask > 0 if outputs[name].shape[:2] == mask.shape else ...
            difference = np.abs(outputs[name] - expected[name]) / (1 + np.abs(expected[name]))
            assert difference[kept].max() < TOLERANCE, name


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_answers_with_padding(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, CPU, "keep")


@pytest.mark.sampled(19)
@pytest.mark.parametrize("name", NAMES)
def test_answers_without_padding(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, CPU, "remove")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_answers_on_openvino(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, "openvino", "auto")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("modernbert-SequenceClassification", "classifier_pooling", "max"),
        ("modernbert-SequenceClassification", "classifier_activation", "prelu"),
        ("deberta-v2-SequenceClassification", "pooler_hidden_act", "prelu"),
        ("qwen3-SequenceClassification", "pad_token_id", None),
        ("qwen2-SequenceClassification", "use_sliding_window", True),
        ("mistral-SequenceClassification", "sliding_window", 16),
        ("bert-TokenClassification", "id2label", {}),
    ],
)
def test_rejects_a_setting_of_the_head(name: str, key: str, value: object, tmp_path: Path) -> None:
    folder = unpack("heads", tmp_path, name)
    with pytest.raises(isorun.InvalidModel, match=key):
        checkpoint.build(tiny.changed(folder, **{key: value}), tmp_path / "built.onnx")


@pytest.mark.parametrize("family", ["albert", "nomic_bert"])
def test_a_head_has_the_activation_of_the_family_if_none_is_named(family: str, tmp_path: Path) -> None:
    """Neither is ``gelu``; transformers writes the key, authors leave it out."""
    folder = unpack("heads", tmp_path, f"{family}-MaskedLM")
    assert_answers(tiny.changed(folder, hidden_act=...), "ort-cpu", "auto")


def without(folder: Path, prefix: str, renamed: str | None = None) -> Path:
    """Remove a checkpoint's tensors whose names begin with a prefix, or rename them."""
    path = folder / "model.safetensors"
    tensors = {
        name if renamed is None else name.replace(prefix, renamed): tensor
        for name, tensor in safetensors.numpy.load_file(path).items()
        if renamed is not None or not name.startswith(prefix)
    }
    tiny.write_safetensors(path, tensors)
    return folder


def test_debertas_own_head_is_the_one_that_the_setting_names(tmp_path: Path) -> None:
    """Both are the same layers by other names."""
    folder = without(unpack("heads", tmp_path, "deberta-v2-MaskedLM"), "cls.predictions.decoder")
    for part in ("bias", "transform.dense", "transform.LayerNorm"):
        without(folder, f"cls.predictions.{part}", f"lm_predictions.lm_head.{part.removeprefix('transform.')}")
    with pytest.raises(isorun.InvalidModel, match=r"no tensor 'cls\.predictions\.transform\.dense\.weight'"):
        heads.check_task(folder, WORDS, "")
    assert_answers(tiny.changed(folder, legacy=False), CPU, "auto")


@pytest.mark.parametrize("family", ["bert", "nomic_bert"])
def test_an_encoder_alone_has_no_head_whatever_the_config_names(family: str, tmp_path: Path) -> None:
    folder = without(unpack("heads", tmp_path, f"{family}-MaskedLM"), "cls.")
    checkpoint.build(folder, tmp_path / "built.onnx")
    with pytest.raises(isorun.InvalidModel, match=r"no tensor 'cls\.\S+dense\.weight'.*use another"):
        heads.check_task(folder, WORDS, "use another")
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text('{"pooling_strategy": "max"}')
    kinds = {"": "sparse_encoder.models.MLMTransformer", "1_SpladePooling": "sparse_encoder.models.SpladePooling"}
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(isorun.InvalidModel, match=r"no tensor 'cls\.\S+dense\.weight'.*SpladePooling"):
        checkpoint.build(folder, tmp_path / "built.onnx")


def test_the_kinds_without_a_head_have_none() -> None:
    assert heads.known("gpt2") == {}
    assert set(heads.known("t5")) == {TOKENS}
