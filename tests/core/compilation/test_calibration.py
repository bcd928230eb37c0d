"""Calibration: on feeds, texts, the texts that come with isorun, or random tokens with a warning."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import isorun
import masks
import small_bert
import tiny
from isorun.compilation.calibration import CalibrationWarning
from isorun.errors import InvalidFeeds, UnsupportedModel
from isorun.system.cache import stages

ADDITION = """<ir_version: 10, opset_import: ["" : 17]>
addition (float[N] x, float[N] y) => (float[N] z) { z = Add (x, y) }"""
LAYER = "encoder.layer.0.intermediate.dense.weight"
WIDE = {"hidden_size": 32, "intermediate_size": 48}
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])

MANY = np.ones((26, 10), np.int64)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.sum(first * second) / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("int8") / "model.onnx", **WIDE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_int8_is_accurate_with_and_without_padding(backend: str, model: Path, tmp_path: Path) -> None:
    samples = [small_bert.feeds(MASK, seed) for seed in range(26)]
    feeds = small_bert.feeds(MASK, 9)
    with isorun.Session(model, backend, cache_dir=tmp_path) as session:
        wanted = session.run(None, feeds)
    answers = {}
    for padding in ("keep", "remove"):
        with isorun.Session(
            model, backend, precision="int8", padding=padding, calibration=samples, cache_dir=tmp_path
        ) as session:
            assert "int8" in session.provenance.precision
            note = session.provenance.details["graph"]["int8"]
            assert note.get("weight_bits", 7) == 7  # stated on processors without VNNI
            assert (note["calibrated_on"], note["batches"], note["layers"]) == ("26 feeds", 26, 8)
            answers[padding] = session.run(None, feeds)
    for got in answers.values():
        assert (
            cosine(got[0][MASK != 0], wanted[0][MASK != 0]) > 0.98
        )  # a narrow model with random weights amplifies errors
        assert cosine(got[1], wanted[1]) > 0.98
    assert cosine(answers["keep"][1], answers["remove"][1]) > 0.9999


def test_calibration_is_cached_by_model_feeds_and_version(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"precision": "int8", "cache_dir": tmp_path, "backend": "ort-cpu"}
    isorun.Session(model, calibration=[small_bert.feeds(MANY)], **settings).close()
    isorun.Session(model, calibration=[small_bert.feeds(MANY)], **settings).close()
    assert len(list((tmp_path / "calibrated").iterdir())) == 1
    isorun.Session(model, calibration=[small_bert.feeds(MANY, 1)], **settings).close()
    assert len(list((tmp_path / "calibrated").iterdir())) == 2
    column = {name: array.reshape(-1, 1) for name, array in small_bert.feeds(MANY, 1).items()}
    isorun.Session(model, calibration=[column], **settings).close()
    assert len(list((tmp_path / "calibrated").iterdir())) == 3
    monkeypatch.setitem(stages.VERSIONS, "calibration", 0)
    isorun.Session(model, calibration=[small_bert.feeds(MANY)], **settings).close()
    assert len(list((tmp_path / "calibrated").iterdir())) == 4


def test_a_model_with_a_tokenizer_is_calibrated_on_the_texts_of_isorun(tokenizer: Path, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    with isorun.Session(folder, "ort-cpu", precision="int8", cache_dir=tmp_path) as session:
        assert session.provenance.details["graph"]["int8"]["calibrated_on"] == "isorun's texts"
    texts = ["a man", "a man is eating food"]
    with isorun.Session(folder, "ort-cpu", precision="int8", cache_dir=tmp_path, calibration=texts) as session:
        assert session.provenance.details["graph"]["int8"]["calibrated_on"] == "2 texts and isorun's"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mask", ["attention_mask", masks.NAME, None])
def test_warns_without_a_tokenizer(mask: str | None, tmp_path: Path) -> None:
    path, feeds = masks.write(tmp_path / "model.onnx", mask, **WIDE), masks.feeds(np.ones((2, 9), np.int64), mask)
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path) as session:
        wanted = session.run(None, feeds)
    with pytest.warns(CalibrationWarning, match="random tokens"):
        session = isorun.Session(path, "ort-cpu", precision="int8", cache_dir=tmp_path)
    with session:
        for got, expected in zip(session.run(None, feeds), wanted, strict=True):
            assert cosine(got, expected) > 0.98


@pytest.mark.parametrize(
    "label",
    [
        "electra-dynamo18-eager",
        *(pytest.param(f"{name}-dynamo18-eager", marks=pytest.mark.long) for name in ("roformer", "albert")),
    ],
)
def test_a_dense_layer_after_the_embeddings(label: str, tmp_path: Path) -> None:
    """Its output is quantized for the first attention, and added to that one's."""
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content(label))
    feeds = exports.given(label)
    real = feeds["attention_mask"] != 0
    samples = [{name: np.roll(array, turn, axis=1) for name, array in feeds.items()} for turn in range(12)]
    with isorun.Session(path, "ort-cpu", cache_dir=tmp_path) as session:
        wanted = session.run(None, feeds)[0][real]
    for backend in ("ort-cpu", "openvino"):
        with isorun.Session(path, backend, precision="int8", calibration=samples, cache_dir=tmp_path) as session:
            got = session.run(None, feeds)[0][real]
        assert min(cosine(row, expected) for row, expected in zip(got, wanted, strict=True)) > 0.97, backend


@pytest.mark.parametrize("label", ["mobilebert-dynamo18-eager", "roformer-torchscript17-eager"])
def test_random_tokens_fit_positions_that_no_embedding_has(label: str, tmp_path: Path) -> None:
    """The table of 64 is sliced beside the embeddings, or has rotations; random rows are up to 128 tokens long."""
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content(label))
    with pytest.warns(CalibrationWarning):
        session = isorun.Session(path, "ort-cpu", precision="int8")
    with session:
        assert session.model_info.limits["sequence"] == 64
        assert session.provenance.details["graph"]["int8"]["layers"]


def test_warns_of_few_real_tokens_whatever_the_name_of_the_mask(tmp_path: Path) -> None:
    path = masks.write(tmp_path / "model.onnx", masks.NAME, **WIDE)
    with pytest.warns(CalibrationWarning, match=f"Calibrated on {MASK.sum()} tokens"):
        isorun.Session(
            path, "ort-cpu", precision="int8", calibration=[masks.feeds(MASK, masks.NAME)], cache_dir=tmp_path
        ).close()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        (["a text", small_bert.feeds(MASK)], "dict and str"),
        ([7], "int"),
        ([{"input_ids": MASK}], "attention_mask"),
        ([small_bert.feeds(MASK * 0)], "no real token: 'attention_mask' is 0 throughout"),
    ],
)
def test_rejects_invalid_samples(samples: list[Any], message: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFeeds, match=message):
        isorun.Session(model, "ort-cpu", precision="int8", calibration=samples, cache_dir=tmp_path)


def test_calibration_checks_indices(tmp_path: Path) -> None:
    """The widths of boxes, which are differences of coordinates, are indices."""
    label = "layoutlm-torchscript17-eager"
    samples = exports.given(label) | {"bbox": np.full((5, 12, 4), 39)}
    samples["bbox"][0, 0, :2] = -39
    with (
        pytest.warns(CalibrationWarning, match="Calibrated on"),
        pytest.raises(InvalidFeeds, match="outside its table"),
    ):
        isorun.Session(exports.content(label), "openvino", precision="int8", calibration=[samples], cache_dir=tmp_path)


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_rejects_a_model_that_is_not_an_encoder(kind: str, tmp_path: Path) -> None:
    content = onnx.parser.parse_model(ADDITION.replace("float", kind)).SerializeToString()
    with pytest.raises(UnsupportedModel, match="Only encoders"):
        isorun.Session(content, "ort-cpu", precision="int8", cache_dir=tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1, 40), (1, 1)])
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_warns_of_one_sample_and_is_accurate_on_it(
    backend: str, shape: tuple[int, int], model: Path, tmp_path: Path
) -> None:
    sample = small_bert.feeds(np.ones(shape, np.int64))
    with isorun.Session(model, backend, cache_dir=tmp_path) as session:
        wanted = session.run(None, sample)
    with pytest.warns(CalibrationWarning, match=f"Calibrated on {shape[1]} tokens"):
        session = isorun.Session(model, backend, precision="int8", calibration=[sample], cache_dir=tmp_path)
    with session:
        for got, expected in zip(session.run(None, sample), wanted, strict=True):
            assert cosine(got, expected) > 0.99


def edited(edit: Callable[[onnx.GraphProto], None]) -> bytes:
    """The model with one change."""
    proto = ir.to_proto(small_bert.build(**WIDE))
    edit(proto.graph)
    content: bytes = proto.SerializeToString()
    return content


def initializer(graph: onnx.GraphProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in graph.initializer if tensor.name == name)


def computed_weight(graph: onnx.GraphProto) -> None:
    """A layer whose weights are computed by a node."""
    layer = next(node for node in graph.node if LAYER in node.input)
    layer.input[1] = "computed"
    initializer(graph, LAYER).CopyFrom(
        numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(initializer(graph, LAYER)).T), LAYER)
    )
    graph.node.insert(0, onnx.helper.make_node("Transpose", [LAYER], ["computed"], perm=[1, 0]))


def fed_weight(graph: onnx.GraphProto) -> None:
    """A layer whose weights are an input with a default."""
    shape = list(initializer(graph, LAYER).dims)
    graph.input.append(onnx.helper.make_tensor_value_info(LAYER, onnx.TensorProto.FLOAT, shape))


def given_weight(graph: onnx.GraphProto) -> None:
    """A layer whose weights are also an output."""
    shape = list(initializer(graph, LAYER).dims)
    graph.output.append(onnx.helper.make_tensor_value_info(LAYER, onnx.TensorProto.FLOAT, shape))


def looked_up_weight(graph: onnx.GraphProto) -> None:
    """A layer whose weights are also a lookup table, as a language model's head shares them with its embedding."""
    graph.node.append(onnx.helper.make_node("Gather", [LAYER, "token_type_ids"], ["rows"]))
    graph.output.append(onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, None))


@pytest.mark.parametrize(
    ("edit", "quantized"), [(computed_weight, 7), (fed_weight, 7), (given_weight, 8), (looked_up_weight, 8)]
)
def test_quantizes_layers_whose_weights_have_other_uses(
    edit: Callable[[onnx.GraphProto], None], quantized: int, tmp_path: Path
) -> None:
    content, feeds = edited(edit), small_bert.feeds(MASK)
    samples = [small_bert.feeds(MANY)]
    settings: dict[str, Any] = {"cache_dir": tmp_path, "padding": "keep"}
    with isorun.Session(content, "ort-cpu", **settings) as session:
        wanted = session.run(None, feeds)
    with isorun.Session(content, "ort-cpu", precision="int8", calibration=samples, **settings) as session:
        assert session.provenance.details["graph"]["int8"]["layers"] == quantized
        got = session.run(None, feeds)
        for output, expected in zip(got, wanted, strict=True):
            assert cosine(output, expected) > 0.98
        if edit is fed_weight:
            zero = session.run(None, {**feeds, LAYER: np.zeros((32, 48), np.float32)})
            assert cosine(zero[0], wanted[0]) < 0.98  # the replacement is used


def test_quantizes_all_layers_of_a_model_partly_in_fp16(tmp_path: Path) -> None:
    content, feeds = exports.archive("half")["bert-torchscript14-sdpa"], exports.given("bert-torchscript14-sdpa")
    samples = [exports.given("bert-torchscript14-sdpa", length) for length in (8, 9, 10, 11, 12) * 2]
    with isorun.Session(content, "ort-cpu", padding="keep", cache_dir=tmp_path) as session:
        wanted = session.run(None, feeds)
    with isorun.Session(
        content, "ort-cpu", precision="int8", padding="keep", calibration=samples, cache_dir=tmp_path
    ) as session:
        assert session.provenance.details["graph"]["int8"]["layers"] == 12
        for got, expected in zip(session.run(None, feeds), wanted, strict=True):
            assert cosine(got, expected) > 0.99
