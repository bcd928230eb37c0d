"""Which graph a session runs: with padding kept, removed, or as each batch needs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import backends
import counting
import exports
import isorun
import mask_forms
import small_bert
from bindings import bound
from isorun.compilation.padding import removal
from isorun.errors import UnsupportedModel
from isorun.graph.io import files
from isorun.types import CompileConfig, Feeds, ModelInfo, TensorSpec
from onnx_text import graph

MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])  # packing pays
LITTLE = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1]])  # it does not


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("padding") / "model.onnx", num_hidden_layers=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_the_three_choices_agree(backend: str, model: Path, cache: Path) -> None:
    outputs, masks, threads = {}, (MASK, LITTLE), backends.threads(backend, 1)
    for padding in ("keep", "remove", "auto"):
        with isorun.Session(model, backend, padding=padding, threads=threads, cache_dir=cache) as session:
            outputs[padding] = [session.run(None, small_bert.feeds(mask)) for mask in masks]
    for padding in ("remove", "auto"):
        for mask, (hidden, pooled), got in zip(masks, outputs["keep"], outputs[padding], strict=True):
            np.testing.assert_allclose(got[0], hidden * mask[..., None], atol=1e-5)
            np.testing.assert_allclose(got[1], pooled, atol=1e-5)


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_a_binding_reads_its_mask_at_every_run(backend: str, model: Path, cache: Path) -> None:
    threads = backends.threads(backend, 1)
    with (
        isorun.Session(model, backend, padding="keep", threads=threads, cache_dir=cache) as kept,
        isorun.Session(model, backend, padding="auto", threads=threads, cache_dir=cache) as session,
    ):
        fed = small_bert.feeds(np.ones_like(MASK))
        binding = bound(session, fed)
        memory = np.zeros((*MASK.shape, 16), np.float32)
        binding.bind_output("last_hidden_state", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
        for mask in (np.ones_like(MASK), MASK, LITTLE, MASK[::-1]):
            fed["attention_mask"][:] = mask
            session.run_with_iobinding(binding)
            np.testing.assert_allclose(memory, kept.run(None, fed)[0] * mask[..., None], atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("residual", ["words", "parallel"])
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_auto_sets_padding_to_zero_in_every_batch_without_a_normalization_of_embeddings(
    backend: str, residual: str, cache: Path
) -> None:
    """As in mBART, M2M100, Pegasus, Megatron and NeoX: whatever the batch, and whichever graph ran it."""
    proto = mask_forms.model("boolean", mean=True, residual=residual)
    random = np.random.default_rng(0)
    with isorun.Session(proto, backend, threads=1, cache_dir=cache) as session:
        assert session.model_info.token_outputs == ("hidden",)
        for mask in (MASK, LITTLE, MASK[1:2], LITTLE[1:2], random.integers(0, 2, (6, 24)), np.ones((2, 30), np.int64)):
            hidden, mean = exports.run(proto, feeds := mask_forms.feeds(mask))
            got, got_mean = session.run(None, feeds)
            np.testing.assert_allclose(got, hidden * mask[..., None], atol=1e-4)
            known = mask.any(axis=1)  # the mean of no token is NaN
            np.testing.assert_allclose(got_mean[known], mean[known], atol=1e-4)
        assert session.provenance.details["padding"]["operators"], "no batch was packed"


KNOWN = ModelInfo(
    (TensorSpec("mask", "tensor(int64)", ("batch", "sequence")),),
    (TensorSpec("whole", "tensor(double)", (1, 3)), TensorSpec("each", "tensor(double)", ("batch", "sequence"))),
    17,
    mask="mask",
    token_outputs=("each",),
    keeps_padding="",
    fused={"Attention": 1},
)
OUTPUTS = [spec.name for spec in KNOWN.outputs]


AUTO = removal("auto", KNOWN, counting.Backend(list), CompileConfig())
MUCH = np.arange(40)[None] < 10


def ones(feeds: Feeds) -> list[Any]:
    return [np.ones((1, 3)), np.ones(feeds["mask"].shape)]


def test_auto_compiles_the_packed_graph_once_and_uses_it_for_padded_batches() -> None:
    model, backend, _ = counting.model(KNOWN, ones, AUTO)
    _, by_token = model.run(OUTPUTS, {"mask": np.ones((2, 3), np.int64)})
    assert (backend.runs, backend.compiled) == ({"main": 1}, {"main": 1})
    assert by_token.all()
    for _ in range(3):
        model.run(OUTPUTS, {"mask": MUCH})
    assert (backend.runs, backend.compiled) == ({"main": 1, "packed": 3}, {"main": 1, "packed": 1})
    note: Mapping[str, Any] = model.report().details["padding"]
    assert note == {
        "requested": "auto",
        "removed": "from batches that have enough of it",
        "operators": {"cpu": {"Op": 3}},
    }
    model.close()
    assert backend.closed == {"main": 1, "packed": 1}


def test_auto_keeps_padding_if_the_backend_lacks_an_operator() -> None:
    error = UnsupportedModel("no NonZero here", ["NonZero"])
    model, backend, requested = counting.model(KNOWN, ones, AUTO, error)
    for _ in range(2):
        _, by_token = model.run(OUTPUTS, {"mask": MUCH})
        np.testing.assert_array_equal(by_token, MUCH)
    assert (backend.runs, requested) == ({"main": 2}, ["packed"])
    assert model.report().details["padding"]["removed"] == "never: no NonZero here"
    model.close()
    assert backend.closed == {"main": 1}


@pytest.mark.parametrize(
    "shape", [None, ("batch", "sequence", 8), ("batch", "other", 8), ("batch", "sequence"), ("b", None)]
)
def test_auto_keeps_padding_if_an_output_may_be_token_level(shape: tuple[int | str | None, ...] | None) -> None:
    """Otherwise it would hold zeros in packed batches and vectors in others."""
    unknown = TensorSpec("unknown", "tensor(double)", shape)
    info = replace(KNOWN, outputs=(*KNOWN.outputs, unknown))
    kept = removal("auto", info, counting.Backend(list), CompileConfig())
    assert kept.note is not None
    assert "'unknown'" in kept.note["removed"]
    assert not kept.by_batch
    assert not kept.zeros


@pytest.fixture
def plain() -> bytes:
    """A model that is not an encoder."""
    return graph("g (float[N] x) => (float[N] y) { y = Neg (x) }").SerializeToString()


def test_a_mask_with_a_default_value_may_be_omitted(model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(MASK, "attention_mask"))
    onnx.save(proto, tmp_path / "own-mask.onnx")
    fed = small_bert.feeds(MASK)
    without = {name: array for name, array in fed.items() if name != "attention_mask"}
    with isorun.Session(tmp_path / "own-mask.onnx", "ort-cpu", cache_dir=tmp_path / "cache") as session:
        expected = session.run(None, fed)
        for got, right in zip(session.run(None, without), expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-5)
        binding = bound(session, without, "last_hidden_state")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected[0], atol=1e-5)


@pytest.mark.parametrize(("change", "reason"), [("removed", "cannot be read"), ("replaced", "has changed")])
def test_keeps_padding_if_the_model_has_changed_since_it_was_opened(change: str, reason: str, tmp_path: Path) -> None:
    """The packed graph is made when it is first needed, and the model's file may be another one by then."""
    path = small_bert.write(tmp_path / "model.onnx", num_hidden_layers=1)
    fed = small_bert.feeds(MASK)
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path / "other") as session:
        expected = session.run(None, fed)
    isorun.Session(path, "ort-cpu", cache_dir=tmp_path / "cache").close()
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path / "cache") as session:
        path.unlink()
        if change == "replaced":
            small_bert.write(path, num_hidden_layers=2)
        for got, right in zip(session.run(None, fed), expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-5)
        assert reason in session.provenance.details["padding"]["removed"]
    small_bert.write(path, num_hidden_layers=1)
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path / "cache") as session:
        for got, right in zip(session.run(None, fed), expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-5)
        assert session.provenance.details["padding"]["removed"] == "from batches that have enough of it"


def test_a_model_that_is_not_an_encoder_keeps_its_padding(plain: bytes, cache: Path) -> None:
    with isorun.Session(plain, "ort-cpu", cache_dir=cache) as session:
        assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]
        assert "padding" not in session.provenance.details
    with pytest.raises(UnsupportedModel, match="Padding cannot be removed"):
        isorun.Session(plain, "ort-cpu", padding="remove", cache_dir=cache)


def test_provenance_reports_padding(model: Path, cache: Path) -> None:
    notes = {}
    for padding in ("keep", "remove", "auto"):
        with isorun.Session(model, "ort-cpu", padding=padding, cache_dir=cache) as session:
            notes[padding] = session.provenance.details.get("padding")
            assert session.get_outputs()[0].shape == ("batch", "sequence", 16)
    assert notes == {
        "keep": None,
        "remove": {"requested": "remove", "removed": "always"},
        "auto": {"requested": "auto", "removed": "from batches that have enough of it"},
    }


def test_the_packed_graph_is_cached(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isorun.Session(model, "ort-cpu", padding="remove", cache_dir=tmp_path).close()
    monkeypatch.setattr(files, "read", None)
    with isorun.Session(model, "ort-cpu", padding="remove", cache_dir=tmp_path) as session:
        assert session.provenance.cache == "found"


@pytest.mark.parametrize(
    ("rows", "length", "kept", "pays"),
    [
        (1, 32, 17, False),  # it would compute 32 anyway
        (1, 32, 16, True),
        (1, 128, 113, False),
        (1, 128, 112, True),
        (8, 64, 465, False),
        (8, 64, 464, True),
        (1, 8, 1, False),
    ],
)
def test_packing_pays_by_the_tokens_that_it_saves(rows: int, length: int, kept: int, pays: bool) -> None:
    mask = np.zeros((rows, length), np.int64)
    mask.flat[:kept] = 1
    model, backend, _ = counting.model(KNOWN, ones, AUTO)
    model.run(OUTPUTS, {"mask": mask})
    assert backend.runs == {"packed" if pays else "main": 1}
