"""The default tolerances beside real runs: every precision passes its own, under every mask, and errors do not.

An error is planted in a model's weights, run in the same precision, and held to what the right model gives in fp64.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import isorun
from isorun.models.presets import SeededWeights
from isorun.parity import DEFAULT_TOLERANCES, Parity, compare
from isorun.parity.samples import MASKS, masked_cases
from isorun.system.hardware import cpu_flags

RUNS = [
    ("ort-cpu", "fp32"),
    ("openvino", "fp32"),
    ("openvino", "bf16"),
    ("reference", "fp16"),
    ("ort-cpu", "int8"),
    ("openvino", "int8"),
]
LEVEL = frozenset({"last_hidden_state"})

Change = Callable[[np.ndarray], np.ndarray]
PLANTED: dict[str, tuple[str, Change]] = {
    "a layer left out": ("encoder.layer.1.output.dense.weight", np.zeros_like),
    "weights the wrong way round": ("encoder.layer.0.attention.output.dense.weight", np.transpose),
    "a dropped bias": ("encoder.layer.1.output.LayerNorm.bias", lambda bias: bias * 0),
    "values in place of queries": (
        "encoder.layer.0.attention.self.qkv.weight",
        lambda w: np.roll(w, w.shape[1] // 3, 1),
    ),
    "another gain": ("encoder.layer.1.output.LayerNorm.weight", lambda gain: gain * 1.3),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers like MiniLM's, 64 wide, with weights that keep activations in a trained model's range."""
    from isorun.graph.builders import encoder, encoder_config
    from isorun.graph.io import files

    config = encoder_config.EncoderConfig(
        vocab_size=99,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    path = tmp_path_factory.mktemp("tolerances") / "model.onnx"
    graph = encoder.encoder(config, SeededWeights(0), "tolerances")
    for name, value in graph.graph.initializers.items():
        if name == "encoder.layer.1.output.LayerNorm.bias" and value.const_value is not None:
            value.const_value = ir.tensor(np.random.default_rng(0).standard_normal(64).astype(np.float32))
    files.write(graph, path)
    return path


def skip_without_bf16(precision: str) -> None:
    if precision == "bf16" and not cpu_flags() & {"avx512_bf16", "amx_bf16"}:
        pytest.skip("this processor has no bf16 arithmetic")


@cache
def answers(path: Path, backend: str, precision: str) -> dict[str, dict[str, np.ndarray]]:
    """What a backend gives for each kind of mask."""
    samples = calibration() if precision == "int8" else None
    with isorun.Session(path, backend, precision=precision, padding="keep", calibration=samples) as session:
        names = [spec.name for spec in session.get_outputs()]
        return {
            kind: dict(zip(names, session.run(None, feeds), strict=True)) for kind, feeds in cases(str(path)).items()
        }


@cache
def cases(path: str) -> dict[str, dict[str, np.ndarray]]:
    with isorun.Session(path, "ort-cpu") as session:
        return masked_cases(session.model_info, 4, 24, seed=0)


def calibration() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    ids = random.integers(0, 99, (12, 24))
    return [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}]


@cache
def right(path: str) -> dict[str, dict[str, np.ndarray]]:
    return answers(Path(path), "reference", "fp64")


def parities(path: Path, backend: str, precision: str, against: Path) -> Iterator[tuple[str, Parity]]:
    outputs, expected = answers(path, backend, precision), right(str(against))
    for kind, feeds in cases(str(against)).items():
        limits = DEFAULT_TOLERANCES[precision]
        yield kind, compare(outputs[kind], expected[kind], feeds["attention_mask"], limits, token_level=LEVEL)


@pytest.mark.parametrize(("backend", "precision"), RUNS)
def test_correct_model_passes(model: Path, backend: str, precision: str) -> None:
    skip_without_bf16(precision)
    by_mask = dict(parities(model, backend, precision, model))
    assert set(by_mask) == set(MASKS)
    assert {kind: parity.reasons for kind, parity in by_mask.items() if parity.reasons} == {}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("backend", "precision", "error"),
    [
        # The tolerance of int8 is one: a single error shows in the gate that it is not too wide.
        pytest.param(*run, error, marks=[pytest.mark.long] if run[1] == "int8" and index else [])
        for run in RUNS
        for index, error in enumerate(PLANTED)
    ],
)
def test_planted_error_fails(model: Path, backend: str, precision: str, error: str, tmp_path: Path) -> None:
    skip_without_bf16(precision)
    name, change = PLANTED[error]
    proto = onnx.load(model)
    (tensor,) = (initializer for initializer in proto.graph.initializer if initializer.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(tensor))), name))
    onnx.save(proto, wrong := tmp_path / "wrong.onnx")
    passed = [kind for kind, parity in parities(wrong, backend, precision, model) if not parity.reasons]
    assert passed == []


def test_lower_precision_exceeds_the_tolerance(model: Path) -> None:
    """A precision that is narrower than the one named is out of its tolerance."""
    expected = right(str(model))
    for backend, precision, named in (("reference", "fp16", "fp32"), ("openvino", "int8", "fp16")):
        outputs = answers(model, backend, precision)
        for kind, feeds in cases(str(model)).items():
            limits = DEFAULT_TOLERANCES[named]
            assert compare(outputs[kind], expected[kind], feeds["attention_mask"], limits, token_level=LEVEL).reasons
