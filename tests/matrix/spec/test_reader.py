from __future__ import annotations

from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun.isolation.environments import FOLDER_VARIABLE
from isorun.parity import DEFAULT_TOLERANCES
from isorun_matrix.spec import reader as specfile
from isorun_matrix.spec.shapes import Lognormal
from isorun_matrix.spec.spec import Spec

SMALL = """\
models: {m: {preset: bert-3l}}
backends: [ort-cpu]
shapes: [8x128]
"""


def load(folder: Path, text: str) -> Spec:
    path = folder / "spec.yaml"
    path.write_text(text)
    return specfile.load(path)


def problems(folder: Path, text: str) -> list[str]:
    """The lines of the error, without the file's name."""
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    message = str(caught.value).replace(f"{folder}/", "")
    if message.startswith("spec.yaml, "):
        return [message.removeprefix("spec.yaml, ")]
    return [line.strip() for line in message.splitlines()]


def test_a_small_spec_and_its_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, SMALL)
    (entry,) = spec.backends
    assert (entry.name, entry.label, entry.precisions, entry.threads) == ("ort-cpu", "ort-cpu", ["fp32"], None)
    (shape,) = spec.shapes_of("m")
    assert (shape.name, shape.batch, shape.sequence, shape.lengths) == ("8x128", 8, 128, "full")
    assert (spec.reference.backend, spec.reference.precision) == ("reference", "fp64")
    assert (spec.time_of_a_cell, spec.repetitions, spec.masks) == (3, None, ["right"])
    assert spec.tolerance("fp32") == DEFAULT_TOLERANCES["fp32"]


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("one\n\n  two \n")
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "checkpoint").mkdir()
    spec = load(
        tmp_path,
        """
models:
  file: {path: model.onnx, shapes: [{batch: 2, dims: {width: 7}, name: wide}]}
  folder: {checkpoint: checkpoint, texts: texts.txt}
  hub: {checkpoint: org/name, texts: [a, b]}
  random: {preset: bert-3l, seed: 3}
backends:
  - {name: openvino, label: one, threads: 1, precisions: [fp32, bf16], options: {properties: {}}}
  - {name: openvino, label: two}
shapes: [1x16]
masks: [none, right, left, holes, masked-row]
feeds: 2
seed: 5
warmup: 0
repetitions: 7
time_limit: 10
reference: {backend: ort-cpu, precision: fp32, time_limit: 5}
tolerances: {bf16: {rms: 0.01, argmax: 0.9}, int8: {max_rel: 0.5, rms: 0.1, cosine: 0.9}}
""",
    )
    assert spec.models["file"].path == str(tmp_path / "model.onnx")
    assert spec.models["folder"].checkpoint == str(tmp_path / "checkpoint")
    assert spec.models["folder"].texts == ["one", "two"]
    assert spec.models["hub"].checkpoint == "org/name"
    assert spec.shapes_of("file")[0].name == "wide"
    assert spec.time_of_a_cell is None
    tolerance = spec.tolerance("bf16")
    assert (tolerance.rms, tolerance.argmax) == (0.01, 0.9)
    assert tolerance.max_rel == DEFAULT_TOLERANCES["bf16"].max_rel


def test_lengths(tmp_path: Path) -> None:
    text = SMALL.replace("[8x128]", "[{batch: 2, sequence: 9, name: n, lengths: LENGTHS}]")
    shape = load(tmp_path, text.replace("LENGTHS", "[1, 9]")).shapes_of("m")[0]
    assert shape.lengths == [1, 9]
    shape = load(tmp_path, text.replace("LENGTHS", "{distribution: lognormal, median: 4}")).shapes_of("m")[0]
    assert isinstance(shape.lengths, Lognormal)
    assert problems(tmp_path, text.replace("LENGTHS", "[10]")) == [
        "line 3: shapes[0]: a length of 10 does not fit a sequence of 9"
    ]
    assert problems(tmp_path, text.replace("LENGTHS", "{distribution: uniform, min: 5, max: 3}")) == [
        "line 3: shapes[0]: the least length, 5, is above the greatest, 3"
    ]
    assert problems(tmp_path, text.replace("LENGTHS", "half")) == [
        "line 3: shapes[0].lengths: should be 'full'; 'half' came"
    ]
    assert problems(tmp_path, text.replace("LENGTHS", "{distribution: normal}")) == [
        "line 3: shapes[0].lengths: should be full, a list of lengths, or a distribution (lognormal or uniform)"
    ]
    assert problems(tmp_path, text.replace("LENGTHS", "{distribution: lognormal, medain: 4}")) == [
        "spec.yaml has 2 errors:",
        "line 3: shapes[0].lengths.median: this key is required",
        "line 3: shapes[0].lengths.medain: there is no such key; did you mean 'median'? "
        "(known: distribution, max, median, min, seed, sigma)",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "warmups: 3",
            "line 4: warmups: there is no such key; did you mean 'warmup'? (known: backends, environments, feeds, "
            "masks, models, reference, repetitions, seconds, seed, shapes, time_limit, tolerances, warmup)",
        ),
        ("seconds: fast", "line 4: seconds: should be a valid number; 'fast' came"),
        ("seconds: .inf", "line 4: seconds: should be a finite number; inf came"),
        ("time_limit: '10'", "line 4: time_limit: should be a valid number; '10' came"),
        ("feeds: 0", "line 4: feeds: should be greater than or equal to 1; 0 came"),
        ("feeds: true", "line 4: feeds: should be a valid integer; True came"),
        ("reference: fp64", "line 4: reference: should be a mapping of keys to values; 'fp64' came"),
        (
            "masks: [rigth]",
            "line 4: masks[0]: should be 'none', 'right', 'left', 'holes' or 'masked-row'; 'rigth' came",
        ),
        ("tolerances: {fp32: {rms: 1}}", "line 4: tolerances.fp32.rms: should be less than 1; 1 came"),
        (
            "reference: {backend: referense}",
            "line 4: reference.backend: there is no backend 'referense'; did you mean 'reference'? "
            "(known: openvino, ort-cpu, ort-cuda, ort-ep, ort-openvino, "
            "ort-tensorrt, reference, tensorrt)",
        ),
        (
            "tolerances: {fp23: {rms: 0.1}, fp16: {rms: 0.1}}",
            "line 4: tolerances.fp23: no backend of this spec computes in it; did you mean 'fp32'? "
            "(known: bf16, fp16, fp32, fp64, int8)",
        ),
        ("shapes: [1x8]", "line 4: shapes: the key is there twice, first on line 3"),
        (
            "repetitions: 5\nseconds: 1",
            "line 1: repetitions and seconds are two ways to say how long a cell runs; give one of them",
        ),
        (
            "seconds: 600",
            "line 1: 600 seconds of measured runs do not fit into a time_limit of 300, which counts from the start of "
            "a cell's process",
        ),
    ],
)
def test_one_wrong_key(tmp_path: Path, change: str, problem: str) -> None:
    assert problems(tmp_path, SMALL + change) == [problem]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            "{name: openvino, precison: [fp32]}",
            "backends[0].precison: there is no such key; did you mean 'precisions'? "
            "(known: environment, label, name, options, precisions, threads)",
        ),
        (
            "openvno",
            "backends[0].name: there is no backend 'openvno'; did you mean 'openvino'? "
            "(known: openvino, ort-cpu, ort-cuda, ort-ep, ort-openvino, "
            "ort-tensorrt, reference, tensorrt)",
        ),
        (
            "{name: openvino, options: {property: 1}}",
            "backends[0].options.property: openvino has no such option; did you mean 'properties'? (known: properties)",
        ),
        (
            "{name: openvino, precisions: [bf61]}",
            "backends[0].precisions: openvino does not compute in 'bf61'; did you mean 'bf16'? "
            "(known: bf16, fp32, int8)",
        ),
        (
            "{name: reference, threads: 2}",
            "backends[0].threads: the number of reference's threads cannot be set; leave threads out",
        ),
        (
            "{name: ort-cpu, precisions: [fp16]}",
            "backends[0].precisions: ort-cpu does not compute in 'fp16': the CPU provider has no matrix products in "
            "it, and computes such a graph's in fp32, between casts",
        ),
        (
            "{name: ort-cpu, environment: ovn}",
            "backends[0].environment: there is no environment 'ovn'; did you mean 'ovns'? (known: ovns). Declare it "
            "under environments, with its install",
        ),
        (
            "{name: ort-cpu, threads: 1025}",
            "backends[0].threads: should be less than or equal to 1024; 1025 came",
        ),
        ("{name: ort-cpu, precisions: [fp32, fp32]}", "backends[0]: a precision is listed twice"),
        ("ort-cpu, ort-cpu", "two backends are called 'ort-cpu'; give one of them a label"),
        ("{label: x}", "backends[0].name: this key is required"),
        ("7", "backends[0]: should be a mapping of keys to values; 7 came"),
    ],
)
def test_a_wrong_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, problem: str) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "environments"))
    limits = "{max_rel: 0.1, rms: 0.1, cosine: 0.9}"
    tolerances = f"tolerances: {{bf61: {limits}}}" if "bf61" in entry else ""
    tolerances += "environments: {ovns: {}}" if "ovn" in entry else ""
    (found,) = problems(tmp_path, SMALL.replace("[ort-cpu]", f"[{entry}]") + tolerances)
    assert found.partition(": ")[2] == problem


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("{}", "models.m: a model has one of path, checkpoint and preset; this has none of them"),
        (
            "{preset: bert-3l, checkpoint: c}",
            "models.m: a model has one of path, checkpoint and preset; this has checkpoint and preset",
        ),
        ("{path: no.onnx}", "models.m.path: there is no file FOLDER/no.onnx"),
        ("{checkpoint: ./no}", "models.m.checkpoint: there is no folder FOLDER/no"),
        (
            "{preset: bert-3l, outputs: []}",
            "models.m.outputs: list should have at least 1 item after validation, not 0; [] came",
        ),
        ("{checkpoint: c, seed: 1}", "models.m: seed goes with a preset: other models have weights of their own"),
        (
            "{preset: bert-9l}",
            "models.m.preset: there is no preset 'bert-9l'; did you mean 'bert-6l'? "
            "(known: bert-3l, bert-6l, bert-base, bert-large)",
        ),
        ("{path: .}", "models.m.path: FOLDER is a folder; a checkpoint's folder goes under checkpoint"),
        ("{checkpoint: spec.yaml}", "models.m.checkpoint: FOLDER/spec.yaml is a file; an ONNX file goes under path"),
        ("{preset: bert-3l, texts: [a]}", "models.m: texts need a tokenizer, and a preset has none"),
        ("{checkpoint: c, texts: no.txt}", "models.m.texts: there is no file FOLDER/no.txt"),
        ("{preset: bert-3l, shapes: [8]}", "models.m.shapes[0]: should be a mapping of keys to values; 8 came"),
        (
            "{preset: bert-3l, shapes: [8by8]}",
            "models.m.shapes[0]: a shape is BATCHxSEQUENCE, such as 8x128, or a mapping; '8by8' is neither",
        ),
        (
            "{preset: bert-3l, shapes: ['0x8']}",
            "models.m.shapes[0].batch: should be greater than or equal to 1; 0 came",
        ),
        ("{preset: bert-3l, shapes: [1x8, 1x8]}", "two shapes of model 'm' are called '1x8'; give one of them a name"),
        (
            "{checkpoint: c, texts: [a], shapes: ['1']}",
            "model 'm' has texts; its shape 1 needs a sequence to pad them to",
        ),
        (
            "{checkpoint: c, texts: [a], shapes: [{batch: 1, sequence: 8, lengths: [3]}]}",
            "model 'm' has texts, which have lengths of their own; shape 1x8 sets others",
        ),
        (
            "{preset: bert-3l, shapes: [{batch: 1, lengths: [3]}]}",
            "models.m.shapes[0]: lengths needs a sequence to be padded to",
        ),
    ],
)
def test_a_wrong_model(tmp_path: Path, model: str, problem: str) -> None:
    (found,) = problems(tmp_path, SMALL.replace("{preset: bert-3l}", model))
    assert found.partition(": ")[2].replace(str(tmp_path), "FOLDER") == problem.replace("FOLDER/", "")


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (
            "{python: 3.10}",
            'environments.e.python: 3.1 is a number to YAML; put the version in quotes, such as "3.11"',
        ),
        (
            "{install: [-e .]}",
            "environments.e.install: '-e .' is nothing to install: give a requirement, such as 'onnxruntime>=1.24', or "
            "a path",
        ),
        (
            "{install: ['./none[all]']}",
            "environments.e.install: './none[all]' is nothing to install: there is no FOLDER/none",
        ),
        (
            "{instal: [x]}",
            "environments.e.instal: there is no such key; did you mean 'install'? (known: install, python)",
        ),
    ],
)
def test_a_wrong_environment(tmp_path: Path, declared: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"{SMALL}environments: {{e: {declared}}}")
    assert found.partition(": ")[2] == problem.replace("FOLDER/", "")


def test_paths_of_an_environment_start_at_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = "environments: {e: {python: bin/python, install: ['./mine[all]', onnxruntime, 'a @ https://b/c']}}"
    declared = load(tmp_path, SMALL + text).environments["e"]
    assert declared.python == f"{tmp_path}/bin/python"
    assert declared.install == [f"{tmp_path}/mine[all]", "onnxruntime", "a @ https://b/c"]


def test_all_problems_are_listed_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """\
models:
  m:
    preset: bert-3l
    sed: 3
backends:
  - name: ort-cpu
    threads: two
shapes: 8x128
"""
    assert problems(tmp_path, text) == [
        "spec.yaml has 3 errors:",
        "line 4: models.m.sed: there is no such key; did you mean 'seed'? "
        "(known: checkpoint, outputs, path, preset, seed, shapes, texts)",
        "line 7: backends[0].threads: should be a valid integer; 'two' came",
        "line 8: shapes: should be a valid list; '8x128' came",
    ]


def test_a_precision_without_default_limits_needs_its_own(tmp_path: Path) -> None:
    spec = load(tmp_path, SMALL)
    with pytest.raises(ValueError, match=r"tolerances has no default for 'fp8'.*give tolerances.fp8 a max_rel"):
        spec.tolerance("fp8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no keys"),
        ("- a\n", "holds no keys"),
        ("a: [\n", "line 2: not YAML: expected the node content"),
        ("a: \x00\n", "is not text: special characters are not allowed, at character 3"),
        ("? [a]\n: b\n", "line 1: not YAML: found unhashable key"),
        ("models: {1: {preset: bert-3l}}\nbackends: [ort-cpu]\nshapes: [1x1]\n", "should be a valid string; 1 came"),
    ],
)
def test_files_that_are_no_spec(tmp_path: Path, content: str, message: str) -> None:
    assert any(message in problem for problem in problems(tmp_path, content))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="There is no spec at"):
        specfile.load(tmp_path / "none.yaml")
    (tmp_path / "spec.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        specfile.load(tmp_path / "spec.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        specfile.load(tmp_path)


def test_the_quickstart_is_sound() -> None:
    spec = specfile.load(Path(__file__).parents[3] / "matrix" / "quickstart.yaml")
    assert {entry.name for entry in spec.backends} == {"ort-cpu", "openvino", "reference"}
