import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import sentence_models
import tiny
from isorun import Session
from isorun.compilation.calibration import CalibrationWarning
from isorun.graph.io import files
from isorun.graph.ops import functions
from isorun.text import Tokenizer
from onnx_text import graph

LABEL = "bert-torchscript17-eager"
LAYERS = 3
WHOLE = {"EmbedLayerNormalization": 1, "SelfAttention": 3, "SkipLayerNormalization": 6, "BiasGelu": 3}

Isorun = Callable[..., Any]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A BERT as PyTorch exports it, in a folder of its own."""
    path = tmp_path / "given" / "bert.onnx"
    path.parent.mkdir()
    path.write_bytes(exports.content(LABEL))
    return path


@pytest.fixture
def partly(tmp_path: Path) -> Path:
    """The same with one attention that cannot be fused: its probabilities are an output."""
    model = exports.model(LABEL)
    probabilities = [node for node in model.graph if node.op_type == "Softmax"][1].outputs[0]
    probabilities.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(probabilities)
    path = tmp_path / "partly.onnx"
    ir.save(model, path)
    return path


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    """No encoder."""
    model = graph("relu (float[300] x) => (float[300] y) { h = Add (x, w) y = Relu (h) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "relu.onnx")
    return tmp_path / "relu.onnx"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", ["fused", "onnx", "primitive", "com.microsoft"])
def test_a_fused_export_agrees_with_the_original(isorun: Isorun, export: Path, tmp_path: Path, dialect: str) -> None:
    output = tmp_path / "out.onnx"
    ran = isorun("fuse", export, "-o", output, "--dialect", dialect, "--require-complete", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["is_encoder"]
    assert ran.json["complete"]
    assert ran.json["kinds"] == {kind: {"found": count, "fused": count} for kind, count in WHOLE.items()}
    assert ran.json["refusals"] == []
    assert ran.json["written"] == {
        "path": str(output),
        "dialect": dialect,
        "padding": "keep",
        "precision": "fp32",
        "notes": {},
        "bytes": output.stat().st_size,
        "external_data": [],
        "tokenizer": None,
    }
    assert any(map(functions.is_fused, files.read(output).graph)) == (dialect == "fused")
    assert exports.agree(LABEL, exports.run(output, exports.given(LABEL)))


def test_prints_a_table(isorun: Isorun, export: Path, partly: Path, tmp_path: Path) -> None:
    whole = isorun("fuse", export, "-o", tmp_path / "whole.onnx")
    lines = [line.split() for line in whole.out.splitlines()]
    assert ["SelfAttention", "3", "3"] in lines
    assert "Not fused" not in whole.out
    part = isorun("fuse", partly, "-o", tmp_path / "part.onnx")
    assert part.code == 0
    assert ["SelfAttention", "2", "3"] in [line.split() for line in part.out.splitlines()]
    assert "Not fused" in part.out
    assert "probabilities" in part.out


def test_json_names_the_node_and_reason_of_a_refusal(isorun: Isorun, partly: Path, tmp_path: Path) -> None:
    ran = isorun("fuse", partly, "-o", tmp_path / "out.onnx", "--json")
    assert ran.code == 0
    assert (ran.json["is_encoder"], ran.json["complete"]) == (True, False)
    assert ran.json["kinds"]["SelfAttention"] == {"found": 3, "fused": 2}
    refused = [refusal for refusal in ran.json["refusals"] if refusal["kind"] == "SelfAttention"]
    softmaxes = [node.name for node in files.read(partly).graph if node.op_type == "Softmax"]
    assert [refusal["node"] for refusal in refused] == [softmaxes[1]]
    assert "probabilities" in refused[0]["reason"]


def test_require_complete_rejects_and_writes_nothing(isorun: Isorun, partly: Path, relu: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    output.write_text("the old model")
    for model, message in ((partly, "could not be fused"), (relu, "no self-attention")):
        ran = isorun("fuse", model, "-o", output, "--require-complete", "--json")
        assert ran.code == 1
        assert message in ran.err
        assert ran.json["written"] is None
        assert output.read_text(encoding="utf-8") == "the old model"


def test_copies_a_model_that_is_not_an_encoder(isorun: Isorun, relu: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    ran = isorun("fuse", relu, "-o", output, "--dialect", "onnx", "--json")
    assert ran.code == 0
    assert ran.json["reason"] == "no self-attention was found in it"
    assert (ran.json["is_encoder"], ran.json["written"]["dialect"]) == (False, None)
    assert output.read_bytes() == relu.read_bytes()
    assert "as given" in isorun("fuse", relu, "-o", output).out


def test_parts_of_what_is_no_encoder_do_not_count_as_fused(isorun: Isorun, export: Path, tmp_path: Path) -> None:
    """Its GELUs could be fused, and what is written has them as they came."""
    model = ir.load(export)
    for softmax in [node for node in model.graph if node.op_type == "Softmax"]:
        probabilities = softmax.outputs[0]
        probabilities.type = ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(probabilities)
    ir.save(model, tmp_path / "none.onnx")
    ran = isorun("fuse", tmp_path / "none.onnx", "-o", tmp_path / "out.onnx", "--json")
    assert ran.json["reason"] == "none of its attentions could be fused"
    assert ran.json["kinds"]["BiasGelu"] == {"found": 3, "fused": 0}
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "none.onnx").read_bytes()


def test_the_fused_form_is_kept(isorun: Isorun, bert: Path, partly: Path, tmp_path: Path) -> None:
    ran = isorun("fuse", bert, "-o", tmp_path / "again.onnx", "--require-complete", "--json")
    assert ran.code == 0
    assert ran.json["already_fused"]
    assert ran.json["kinds"]["SelfAttention"] == {"found": 2, "fused": 2}
    feeds = tiny.feeds()
    for output, expected in zip(exports.run(tmp_path / "again.onnx", feeds), exports.run(bert, feeds), strict=True):
        np.testing.assert_array_equal(output, expected)
    assert isorun("fuse", partly, "-o", tmp_path / "once.onnx").code == 0
    twice = isorun("fuse", tmp_path / "once.onnx", "-o", tmp_path / "twice.onnx", "--require-complete", "--json")
    assert twice.code == 1, "what was refused the first time is refused the second"
    assert twice.json["refusals"][0]["kind"] == "SelfAttention"


def test_rejects_padding_removal_from_other_models(isorun: Isorun, relu: Path, tmp_path: Path) -> None:
    ran = isorun("fuse", relu, "-o", tmp_path / "out.onnx", "--padding", "remove")
    assert (ran.code, "Padding cannot be removed" in ran.err) == (3, True)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("label", [LABEL, None])
def test_external_weights_are_written_beside_the_output(
    isorun: Isorun, tmp_path: Path, relu: Path, label: str | None
) -> None:
    proto = exports.proto(label) if label else onnx.load(relu)
    feeds = exports.given(label) if label else {"x": np.linspace(-400, 400, 300, dtype=np.float32)}
    expected = exports.run(proto, feeds)
    (tmp_path / "in").mkdir()
    onnx.save(proto, tmp_path / "in" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    ran = isorun("fuse", tmp_path / "in" / "m.onnx", "-o", tmp_path / "out" / "m.onnx", "--json")
    assert ran.code == 0
    assert ran.json["written"]["external_data"] == ["m.weights.bin"]
    assert ran.json["written"]["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    shutil.rmtree(tmp_path / "in")
    assert exports.difference(expected, exports.run(tmp_path / "out" / "m.onnx", feeds)) < exports.TOLERANCE


@pytest.mark.parametrize("name", ["bert.tokenizer.json", "tokenizer.json", "../tokenizer.json"])
def test_copies_the_tokenizer(isorun: Isorun, export: Path, tmp_path: Path, name: str) -> None:
    (export.parent / name).write_text("{}")
    output = tmp_path / "out" / "m.onnx"
    output.parent.mkdir()
    ran = isorun("fuse", export, "-o", output, "--json")
    assert ran.json["written"]["tokenizer"] == str(output.with_name("m.tokenizer.json"))
    assert {path.name for path in output.parent.iterdir()} == {"m.onnx", "m.tokenizer.json"}


@pytest.mark.parametrize("layout", ["built", "folder"])
def test_a_fused_file_reads_text_as_its_model(isorun: Isorun, tmp_path: Path, layout: str) -> None:
    folder = sentence_models.write_sentence_model(tmp_path / "letters")
    model = (folder if layout == "folder" else tmp_path) / "model.onnx"
    assert isorun("build", folder, "-o", tmp_path / "model.onnx").code == 0
    if layout == "folder":
        exported = onnx.load(tmp_path / "model.onnx")
        del exported.metadata_props[:]  # which isorun writes
        onnx.save(exported, model)
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "fused.onnx"
    assert isorun("fuse", model, "-o", output).code == 0
    if layout == "built":
        assert "fused.tokenizer_config.json" in {path.name for path in output.parent.iterdir()}
    texts = ["AB", "ab C", "abc abc"]
    ids = [[[token.id for token in row] for row in Tokenizer(path).encode(texts)] for path in (model, output)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_files_of_the_model_s_text_are_not_overwritten(isorun: Isorun, tmp_path: Path, name: str) -> None:
    folder = sentence_models.write_sentence_model(tmp_path / "letters")
    model = tmp_path / "m.onnx"
    assert isorun("build", folder, "-o", model).code == 0
    before = (tmp_path / f"m.{name}").read_bytes()
    for command in (("fuse", model, "-o"), ("run", model, "--text", "a", "--output")):
        ran = isorun(*command, tmp_path / f"m.{name}")
        assert (ran.code, "would be overwritten" in ran.err) == (2, True)
    assert (tmp_path / f"m.{name}").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dialect", "onx"], "dialect 'onx'; did you mean 'onnx'?"),
        (["--padding", "auto"], "padding 'auto'"),
        (["--precision", "fp61"], "did you mean 'fp16'"),
        (["--outputs", "pooler_output,pooler_output"], "repeats 'pooler_output'"),
    ],
)
def test_wrong_usage(isorun: Isorun, export: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = isorun("fuse", export, "-o", tmp_path / "out.onnx", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert not (tmp_path / "out.onnx").exists()


def test_files_are_checked_before_the_work(
    isorun: Isorun, export: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object) -> None:
        raise AssertionError("it began to fuse")

    monkeypatch.setattr("isorun.graph.pipeline.fuse", work)
    link = tmp_path / "link.onnx"
    link.symlink_to(export)
    beside = tmp_path / "beside.onnx"
    weights = {"save_as_external_data": True, "location": "out.weights.bin", "size_threshold": 0}
    onnx.save(exports.proto(LABEL), beside, **weights)
    (tmp_path / "text.onnx").write_text("hello")
    free = tmp_path / "free.onnx"
    for model, output, message in (
        (export.with_name("brt.onnx"), free, f"did you mean {export}?"),
        (tmp_path, free, "MODEL.onnx must be a file"),
        (checkpoint, free, "`isorun build`"),
        (tmp_path / "text.onnx", free, "is not an ONNX model"),
        (export, tmp_path, "is a folder"),
        (export, "", "is a folder"),
        (export, export, "is a file that this command reads"),
        (export, link, "is a file that this command reads"),
        (beside, tmp_path / "out.weights.bin", "is a file that this command reads"),
        (beside, tmp_path / "out.onnx", "is a file that this command reads"),
    ):
        ran = isorun("fuse", model, "-o", output)
        assert (ran.code, message in ran.err) == (2, True), ran.err


def test_fp16_is_written(isorun: Isorun, bert: Path, tmp_path: Path) -> None:
    output = tmp_path / "half.onnx"
    ran = isorun("fuse", bert, "-o", output, "--precision", "fp16", "--padding", "remove")
    assert ran.code == 0
    assert "the fused form, padding removed, fp16" in ran.out
    described = isorun("inspect", output, "--json").json
    assert set(described["parameters_by_precision"]) == {"fp16", "int64"}
    assert [spec["type"] for spec in described["outputs"]] == ["tensor(float)"] * 2


def test_lists_what_stays_in_fp32_with_the_reason(isorun: Isorun, tmp_path: Path) -> None:
    text = """g (float[N,2] x) => (float[N,2] y)
        <float[2,2] w = {1, 2, 3, 100000}, float[2,2] v = {1, 2, 3, 4}> { h = MatMul (x, v) y = MatMul (h, w) }"""
    model = tmp_path / "m.onnx"
    onnx.save(graph(text), model)
    ran = isorun("fuse", model, "-o", tmp_path / "half.onnx", "--precision", "fp16", "--json")
    (kept,) = ran.json["written"]["notes"]["fp16"]["kept"]
    assert kept["operator"] == "MatMul"
    assert kept["reason"] == "its constant 'w' has values up to 1e+05, and fp16 ends at 65504"
    assert "Not in fp16" in isorun("fuse", model, "-o", tmp_path / "half.onnx", "--precision", "fp16").out


def test_int8_is_written(isorun: Isorun, bert: Path, tmp_path: Path) -> None:
    output = tmp_path / "quantized.onnx"
    with pytest.warns(CalibrationWarning):
        ran = isorun(
            *("fuse", bert, "-o", output, "--precision", "int8"),
            *("--padding", "remove", "--dialect", "onnx", "--json"),
        )
    note = ran.json["written"]["notes"]["int8"]
    assert note["calibrated_on"] == "random tokens"
    kinds = [node.op_type for node in onnx.load(output).graph.node]
    assert kinds.count("QuantizeLinear") == note["layers"] > 4
    feeds = tiny.feeds()
    with Session(bert, "ort-cpu", padding="remove") as plain, Session(output, "ort-cpu") as quantized:
        expected, outputs = plain.run(None, feeds)[0], quantized.run(None, feeds)[0]
    assert np.sum(outputs * expected) / np.linalg.norm(outputs) / np.linalg.norm(expected) > 0.95


def test_only_int8_is_calibrated(isorun: Isorun, bert: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a text\n")
    ran = isorun("fuse", bert, "-o", tmp_path / "m.onnx", "--calibrate", tmp_path / "texts.txt")
    assert ran.code == 2
    assert "--precision int8" in ran.err


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_fuses_for_requested_outputs(isorun: Isorun, partly: Path, tmp_path: Path, precision: str) -> None:
    """What only the others read is not in the way: here, an attention's probabilities."""
    out = tmp_path / "out.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        ran = isorun(
            *("fuse", partly, "-o", out, "--outputs", "pooler_output", "--precision", precision, "--require-complete"),
            *("--dialect", "com.microsoft"),
        )
    assert ran.code == 0, ran.err
    model = ir.load(out)
    assert [value.name for value in model.graph.outputs] == ["pooler_output"]
    feeds = exports.given(LABEL)
    expected = exports.answers(LABEL)[1]
    close = 0.2 if precision == "int8" else exports.TOLERANCE
    assert exports.difference([expected], exports.run(model, feeds)) < close
    quantized = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    assert len(quantized) == (0 if precision == "fp32" else 4 * LAYERS + 1)
