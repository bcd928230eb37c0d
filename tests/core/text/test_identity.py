import base64
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import isorun
import sentence_models
from isorun.compilation.calibration import CalibrationWarning
from isorun.errors import InvalidArgument
from isorun.quality import agreement
from isorun.text import vector_types
from isorun.text.identity import VectorIdentity, compared, pack, probe_texts

IDENTITY = VectorIdentity(
    model="a",
    tokenizer="b",
    pooling="mean",
    layers="",
    normalized=True,
    dimension=8,
    prompt="",
    include_prompt=True,
    max_length=128,
    precision="fp32",
    backend="ort-cpu",
    version="onnxruntime 1.31.1",
    quantizer="",
    settings="",
    stored="",
)
OTHERS = {
    **dict.fromkeys(
        ("model", "tokenizer", "pooling", "layers", "prompt", "backend", "version", "quantizer", "settings", "stored"),
        "other",
    ),
    **{"normalized": False, "dimension": 4, "include_prompt": False, "max_length": None, "precision": "fp64"},
}
NUMERIC = {"precision", "backend", "version", "quantizer", "settings"}


def record(noise: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A record with random vectors of the probe texts."""
    vectors = np.random.default_rng(0).standard_normal((len(probe_texts()), 8))
    noisy = vectors + noise * np.random.default_rng(1).standard_normal(vectors.shape)
    return {**replace(IDENTITY, **changes).as_dict(), "probe": pack(noisy)}


@pytest.mark.parametrize("name", [field.name for field in fields(IDENTITY)])
def test_each_field_counts(name: str) -> None:
    other = record(**{name: OTHERS[name]})
    assert other["identity"] != str(IDENTITY)
    verdict = compared(record(), {**other, "probe": None})
    assert verdict.fields == (name,)
    assert verdict.kind == ("same" if name in NUMERIC else "different")
    assert name in verdict.reason


def test_equal_records_are_the_same() -> None:
    assert compared(record(), record()).kind == "same"


@pytest.mark.parametrize(("noise", "kind"), [(0.001, "compatible"), (2.0, "different")])
def test_a_lower_precision_is_measured(noise: float, kind: str) -> None:
    verdict = compared(record(), record(noise, precision="fp32+int8", quantizer="x"))
    assert verdict.kind == kind
    assert verdict.recall is not None
    assert (verdict.recall.low >= 0.9) == (kind == "compatible")
    assert bool(verdict) == (kind == "compatible")


def test_without_vectors_nothing_is_assumed() -> None:
    bare = {**record(precision="fp32+int8"), "probe": None}
    verdict = compared(record(), bare)
    assert (verdict.kind, verdict.recall) == ("different", None)


@pytest.mark.parametrize("damage", [{"identity": "isorun-1-0"}, {"probe": "AAAA"}, {"model": "c"}])
def test_rejects_a_damaged_record(damage: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        compared(record(), {**record(precision="bf16"), **damage})
    with pytest.raises(InvalidArgument, match="lacks"):
        VectorIdentity.from_dict({"model": "a"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("dimension", value) for value in (None, "abc", "8", [8], 8.5, -1, 0, True, 10**30)),
        *(("max_length", value) for value in ("128", 0, True, 1.5)),
        *(("normalized", value) for value in (None, 1, "yes")),
        *((name, value) for name in ("model", "precision", "stored") for value in (None, 3, ["fp32"])),
        ("stored", "other"),
        ("probe", 3),
        ("probe", pack(np.full((len(probe_texts()), 8), np.nan))),
    ],
    ids=str,
)
def test_rejects_values_of_another_type(name: str, value: Any) -> None:
    """Also in a record without its ``identity``, which is accepted."""
    ours, theirs = ({**record(precision=precision), name: value} for precision in ("fp32", "bf16"))
    for damaged in (ours, theirs):
        del damaged["identity"]
    with pytest.raises(InvalidArgument):
        compared(ours, theirs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_models.write_sentence_model(tmp_path_factory.mktemp("identity"))


def test_an_embedder_is_the_same_on_another_backend(folder: Path) -> None:
    with isorun.Embedder(folder, backend="ort-cpu") as one, isorun.Embedder(folder, backend="openvino") as other:
        verdict = one.compatible_with(json.loads(json.dumps(other.vector_record())))
        assert (verdict.kind, set(verdict.fields)) == ("same", {"backend", "version"})
        assert one.identity.dimension == one.dimension


def test_a_checkpoint_is_the_same_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    """In a folder of another name, built into another cache, with a prompt that is given elsewhere."""
    copy = shutil.copytree(folder, tmp_path / "of another name")
    stated = copy / "config_sentence_transformers.json"
    stated.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": "query"}))
    with (
        isorun.Embedder(folder, backend="ort-cpu", prompts={"query": "query: "}, default_prompt="query") as one,
        isorun.Embedder(copy, backend="ort-cpu", cache_dir=tmp_path / "cache") as other,
    ):
        assert other.identity == one.identity
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    with isorun.Session(folder) as first, isorun.Session(copy, cache_dir=tmp_path / "another") as second:
        assert second.provenance.fingerprint == first.provenance.fingerprint


@pytest.mark.parametrize("kind", vector_types.KINDS)
def test_what_is_stored_is_measured(kind: str) -> None:
    """Of values that lie near a step, little noise changes many; of floats it changes no neighbour."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((len(probe_texts()), 8)).astype(np.float32)
    ranges = None if kind in vector_types.BITS else np.stack([np.full(8, -100.0), np.full(8, 100.0)]).astype(np.float32)
    noisy = vectors + np.float32(0.05) * random.standard_normal(vectors.shape).astype(np.float32)
    stored = [vector_types.quantized(rows, kind, ranges) for rows in (vectors, noisy)]
    records = [
        {**replace(IDENTITY, stored=f"{kind} ranges", precision=precision).as_dict(), "probe": pack(rows)}
        for precision, rows in zip(("fp32", "int8"), stored, strict=True)
    ]
    searched = [np.unpackbits(rows.view(np.uint8), axis=1) if ranges is None else rows for rows in stored]
    if kind == "binary":
        searched = [np.unpackbits((rows.astype(np.int16) + 128).astype(np.uint8), axis=1) for rows in stored]
    expected = [2.0 * rows - 1 if ranges is None else rows for rows in searched]
    measured = compared(*records).recall
    both = [agreement(expected[0], expected[1], expected[0]), agreement(expected[1], expected[0], expected[1])]
    assert measured == min((measure.recall for measure in both), key=lambda interval: interval.low)
    of_floats = compared(record(), {**record(precision="int8"), "probe": pack(noisy)})
    assert measured != of_floats.recall
    with pytest.raises(InvalidArgument):
        compared(records[0], {**records[1], "probe": pack(noisy)})


def test_an_embedder_records_what_it_stores(folder: Path) -> None:
    with isorun.Embedder(folder, backend="ort-cpu", quantize="ubinary") as embedder:
        probe = embedder.vector_record()["probe"]
        assert base64.b64decode(probe) == embedder.embed(embedder.encode(probe_texts())).tobytes()


def test_use_does_not_change_an_identity(folder: Path) -> None:
    """The packed graph is compiled for the first batch with enough padding."""
    with isorun.Embedder(folder, backend="ort-cpu", padding="auto") as embedder:
        before = embedder.identity
        embedder.embed(["a", "a b c d e f a"])
        assert embedder.session.provenance.details["padding"]["operators"]
        assert embedder.identity == before


def test_batches_count_where_they_change_vectors(folder: Path, tmp_path: Path) -> None:
    """Not of models whose rows are independent, nor where rows run one at a time."""
    with isorun.Embedder(folder, backend="ort-cpu") as one, isorun.Embedder(folder, batch_tokens=64) as other:
        assert other.identity.settings == one.identity.settings
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[B, S] input_ids, int64[B, S] attention_mask) => (float[B, S, 4] last_hidden_state)
    <float[20, 4] table = {TABLE}>
    { x = Gather (table, input_ids)
      q, s, z = DynamicQuantizeLinear (x)  last_hidden_state = DequantizeLinear (q, s, z) }"""
    numbers = np.random.default_rng(0).standard_normal(80) * np.repeat(np.arange(20), 4)
    onnx.save(
        onnx.parser.parse_model(text.replace("TABLE", ", ".join(f"{number:f}" for number in numbers))),
        tmp_path / "model.onnx",
    )
    shutil.copy(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    opened: dict[int | None, isorun.Embedder] = {}
    for tokens in (None, 1, 64, 4096):
        opened[tokens] = isorun.Embedder(
            tmp_path / "model.onnx", backend="ort-cpu", pooling="mean", batch_tokens=tokens, max_length=8
        )
    assert opened[1].identity == opened[None].identity
    for tokens in (64, 4096):
        verdict = opened[tokens].compatible_with(opened[None].vector_record())
        assert verdict.fields == ("settings",)
        assert verdict.recall is not None
    assert opened[64].identity != opened[4096].identity
    for embedder in opened.values():
        embedder.close()


def test_other_settings_are_different_vectors(folder: Path) -> None:
    with isorun.Embedder(folder, backend="ort-cpu") as one:
        kept = one.vector_record()
    for changes, name in (({"pooling": ["cls", "max"]}, "pooling"), ({"max_length": 5}, "max_length")):
        with isorun.Embedder(folder, backend="ort-cpu", **changes) as other:
            verdict = other.compatible_with(kept)
            assert (verdict.kind, verdict.fields) == ("different", (name,))


def test_int8_of_other_samples_is_not_called_the_same(folder: Path) -> None:
    """As many samples, of as many tokens: only what they say differs."""
    identities = []
    for letter in "ac":
        samples = [f"{letter} b " * (number % 4 + 1) for number in range(40)]
        with (
            warnings.catch_warnings(action="ignore", category=CalibrationWarning),
            isorun.Embedder(folder, backend="ort-cpu", precision="int8", calibration=samples) as embedder,
        ):
            identities.append(embedder.identity)
    verdict = compared(*(identity.as_dict() for identity in identities))
    assert (verdict.kind, verdict.fields, verdict.unmeasured) == ("different", ("quantizer",), True)


def test_the_command_compares_what_embed_wrote(isorun: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("one text\nanother text\n")
    for name, scaled in (("a", "--normalize"), ("b", "--no-normalize")):
        arguments = ("--model", folder, "--backend", "ort-cpu", scaled)
        assert isorun("embed", tmp_path / "texts.txt", "-o", tmp_path / f"{name}.npy", *arguments).code == 0
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    assert isorun("vectors", "compare", a, a).out.startswith("same: ")
    ran = isorun("vectors", "compare", a, b, "--json")
    assert (ran.code, ran.json["kind"], ran.json["fields"]) == (1, "different", ["normalized"])
    assert isorun("vectors", "compare", a, tmp_path / "none.npy").code not in (0, 1)
