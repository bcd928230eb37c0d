"""The backend beyond isorun's conformance checks, which are in test_conformance.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import isorun
import quantized_forms
from isorun.errors import BackendUnavailable, UnsupportedModel
from isorun.graph.builders import encoder, encoder_config
from isorun.graph.io import files
from isorun.parity.samples import MASKS
from isorun_deepsparse.backend import DeepSparse, operators, sparse_layers
from isorun_deepsparse.prune import prune

SIZES = {"vocab_size": 99, "max_position_embeddings": 128, "hidden_size": 256, "intermediate_size": 1024}
SHAPE = {"batch": 2, "sequence": 64}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
UNKNOWN = """<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>
g (float[4] x) => (float[4] y) { y = nowhere.Frobnicate (x) }"""


class Weights:
    """Random weights."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """There is a tensor for every name and shape."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng(sum(name.encode()))
        return (random.standard_normal(shape) * 0.05 + name.endswith("LayerNorm.weight")).astype(np.float32)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """A BERT of one layer and symbolic shapes, by the share of its weights that is zero."""
    folder = tmp_path_factory.mktemp("models")

    def write(sparsity: float) -> Path:
        path = folder / f"{sparsity}.onnx"
        if not path.is_file():
            config = encoder_config.EncoderConfig(num_hidden_layers=1, num_attention_heads=4, **SIZES)
            model = encoder.encoder(config, Weights(), "one-layer")
            if sparsity:
                prune(model, sparsity)
            files.write(model, path)
        return path

    return write


@pytest.fixture(scope="module")
def opened(
    bert: Callable[[float], Path], environment: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[float], isorun.Session]]:
    """Sessions, by the share of zeros."""
    cache, sessions = tmp_path_factory.mktemp("cache"), {}

    def open_once(sparsity: float) -> isorun.Session:
        if sparsity not in sessions:
            sessions[sparsity] = isorun.Session(
                bert(sparsity),
                "deepsparse",
                environment=environment,
                threads=1,
                cache_dir=cache,
            )
        return sessions[sparsity]

    yield open_once
    for session in sessions.values():
        session.close()


def feeds(mask: str = "right", seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shape = tuple(SHAPE.values())
    ids, types = random.integers(0, 99, shape), random.integers(0, 2, shape)
    return dict(zip(INPUTS, (ids, MASKS[mask](*shape, random).astype(np.int64), types), strict=True))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sparsity", [0, 0.9])
def test_symbolic_model_at_the_requested_sizes(
    opened: Callable[[float], isorun.Session], bert: Callable[[float], Path], sparsity: float, mask: str, tmp_path: Path
) -> None:
    inputs = feeds(mask)
    with isorun.Session(bert(sparsity), "reference", padding="keep", cache_dir=tmp_path) as reference:
        expected = reference.run(None, inputs)
    for output, wanted in zip(opened(sparsity).run(None, inputs), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=0, atol=2e-5)


def test_provenance_reports_the_zeros_that_are_skipped(opened: Callable[[float], isorun.Session]) -> None:
    dense, sparse = (opened(sparsity).provenance for sparsity in (0, 0.9))
    assert dense.details["sparse_layers"] == {}
    shares = sparse.details["sparse_layers"]
    assert "layer.0.intermediate:0" in shares
    assert list(shares.values()) == pytest.approx([0.9] * len(shares), abs=0.01)
    for provenance in (dense, sparse):
        assert provenance.details["supported_operators"] == 1.0
        assert sum(provenance.operators["DeepSparse"].values()) > 10
        assert (provenance.precision, provenance.threads) == ("fp32", 1)
        assert provenance.versions["deepsparse"] == "1.8.0"


def test_runs_feeds_of_several_shapes(opened: Callable[[float], isorun.Session]) -> None:
    session = opened(0)
    first, _ = session.run(None, feeds())
    shorter, _ = session.run(None, {name: array[:1, :40] for name, array in feeds().items()})
    assert shorter.shape[:2] == (1, 40)
    assert len(session.provenance.details["static_shapes"]["compiled"]) > 1
    np.testing.assert_array_equal(session.run(None, feeds())[0], first)


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_rejects_unsupported_precision(
    bert: Callable[[float], Path], environment: str, precision: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendUnavailable, match=precision):
        isorun.Session(bert(0), "deepsparse", environment=environment, precision=precision, cache_dir=tmp_path)


def test_names_an_unsupported_operator(environment: str, tmp_path: Path) -> None:
    content = onnx.parser.parse_model(UNKNOWN).SerializeToString()
    with pytest.raises(UnsupportedModel, match="Frobnicate") as refusal:
        isorun.Session(content, "deepsparse", environment=environment, cache_dir=tmp_path)
    assert refusal.value.operators == ("Frobnicate",)


@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_quantized_sparseml_checkpoint_runs_unchanged(
    environment: str, weights: type[np.int8 | np.uint8], tmp_path: Path
) -> None:
    label = "bert-torchscript17-eager"
    model = exports.model(label)
    prune(model, 0.8, "block4", layers=["*"])
    samples = [exports.given(label, rows=4), exports.given(label, 9, rows=4)]
    content = quantized_forms.sparseml(ir.to_proto(model), samples, weights).SerializeToString()
    with isorun.Session(
        content,
        "deepsparse",
        environment=environment,
        cache_dir=tmp_path,
    ) as session:
        got = session.run(None, samples[0])
        provenance = session.provenance
    for output, expected in zip(got, exports.run(content, samples[0]), strict=True):
        assert np.sum(output * expected) / np.linalg.norm(output) / np.linalg.norm(expected) > 0.9999
    assert provenance.precision == "fp32+int8"
    assert len(provenance.details["sparse_layers"]) >= 6
    assert list(provenance.details["sparse_layers"].values()) == pytest.approx(
        [0.8] * len(provenance.details["sparse_layers"]), abs=0.01
    )


@pytest.mark.skipif(find_spec("deepsparse") is not None, reason="it is installed here")
def test_unavailable_backend_says_how_to_install_it() -> None:
    availability = DeepSparse("deepsparse").availability()
    assert not availability.ok
    assert "isorun env create deepsparse --python 3.11 --install isorun-deepsparse" in availability.remedy


def test_counts_layers_by_what_runs_them() -> None:
    names = ["Naive Subgraph 0", "gemm_3", "ks_gemm_hyb-89.8%_15", "ks_gemm_hyb-90.1%_16", "pyramid_12"]
    names += ["elementwise_plus_2_6", "Naive Subgraph 1"]
    layers = [{"name": name, "canonical_name": f"of {name}", "kernel_sparsity": 0.5} for name in names]
    assert operators(layers) == {
        "ONNX Runtime, inside DeepSparse": {"Naive Subgraph": 2},
        "DeepSparse": {"ks_gemm_hyb": 2, "gemm": 1, "pyramid": 1, "elementwise_plus_2": 1},
    }
    assert sparse_layers(layers) == {"of ks_gemm_hyb-89.8%_15": 0.5, "of ks_gemm_hyb-90.1%_16": 0.5}
