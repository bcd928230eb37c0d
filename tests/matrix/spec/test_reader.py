from __future__ import annotations

import re
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun.isolation.environments import FOLDER_VARIABLE
from isorun.parity import DEFAULT_TOLERANCES
from isorun_matrix.spec import reader
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
    return reader.load(path)


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


def test_every_key(tmp_path: Path) -> None:
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


LENGTHS = "shapes: [{batch: 2, sequence: 9, name: n, lengths: %s}]"


def test_lengths(tmp_path: Path) -> None:
    text = SMALL.replace("shapes: [8x128]", LENGTHS)
    assert load(tmp_path, text % "[1, 9]").shapes_of("m")[0].lengths == [1, 9]
    shape = load(tmp_path, text % "{distribution: lognormal, median: 4}").shapes_of("m")[0]
    assert isinstance(shape.lengths, Lognormal)


def changed(change: str) -> str:
    """The small spec with a key added, or replaced if it is there."""
    key = change.partition(":")[0]
    return "".join(line for line in SMALL.splitlines(keepends=True) if not line.startswith(f"{key}:")) + change


@pytest.mark.parametrize(
    ("change", "place", "word"),
    [
        ("warmups: 3", "warmups", "'warmup'"),
        ("seconds: fast", "seconds", "valid number, got 'fast'"),
        ("seconds: .inf", "seconds", "finite"),
        ("time_limit: '10'", "time_limit", "valid number"),
        ("feeds: 0", "feeds", "greater than or equal to 1"),
        ("feeds: true", "feeds", "valid integer"),
        ("reference: fp64", "reference", "mapping"),
        ("masks: [rigth]", "masks[0]", "'rigth'"),
        ("tolerances: {fp32: {rms: 1}}", "tolerances.fp32.rms", "less than 1"),
        ("reference: {backend: referense}", "reference.backend", "'reference'"),
        ("tolerances: {fp23: {rms: 0.1}, fp16: {rms: 0.1}}", "tolerances.fp23", "'fp32'"),
        ("seed: 1\nseed: 2", "seed", "line 4"),
        ("repetitions: 5\nseconds: 1", "", "repetitions and seconds"),
        ("seconds: 600", "", "time_limit"),
        (LENGTHS % "[10]", "shapes[0]", "length of 10"),
        (LENGTHS % "{distribution: uniform, min: 5, max: 3}", "shapes[0]", "min (5)"),
        (LENGTHS % "half", "shapes[0].lengths", "'full'"),
        (LENGTHS % "{distribution: normal}", "shapes[0].lengths", "lognormal or uniform"),
        (LENGTHS % "{distribution: uniform, mni: 1}", "shapes[0].lengths.mni", "'min'"),
        ("backends: [{name: openvino, precison: [fp32]}]", "backends[0].precison", "'precisions'"),
        ("backends: [openvno]", "backends[0].name", "'openvino'"),
        ("backends: [{name: openvino, options: {property: 1}}]", "backends[0].options.property", "'properties'"),
        (
            "backends: [{name: openvino, precisions: [bf61]}]\n"
            "tolerances: {bf61: {max_rel: 0.1, rms: 0.1, cosine: 0.9}}",
            "backends[0].precisions",
            "'bf16'",
        ),
        ("backends: [{name: ort-cpu, precisions: [fp8]}]", "", "tolerances.fp8"),
        ("backends: [{name: reference, threads: 2}]", "backends[0].threads", "threads"),
        ("backends: [{name: ort-cpu, precisions: [fp16]}]", "backends[0].precisions", "matrix products"),
        (
            "backends: [{name: ort-cpu, environment: ovn}]\nenvironments: {ovns: {}}",
            "backends[0].environment",
            "'ovns'",
        ),
        ("backends: [{name: ort-cpu, threads: 1025}]", "backends[0].threads", "1024"),
        ("backends: [{name: ort-cpu, precisions: [fp32, fp32]}]", "backends[0]", "twice"),
        ("backends: [ort-cpu, ort-cpu]", "", "label 'ort-cpu'"),
        ("backends: [{label: x}]", "backends[0].name", "missing"),
        ("backends: [7]", "backends[0]", "mapping"),
        ("models: {m: {}}", "models.m", "exactly one"),
        ("models: {m: {preset: bert-3l, checkpoint: c}}", "models.m", "checkpoint and preset"),
        ("models: {m: {path: no.onnx}}", "models.m.path", "not found"),
        ("models: {m: {checkpoint: ./no}}", "models.m.checkpoint", "not found"),
        ("models: {m: {preset: bert-3l, outputs: []}}", "models.m.outputs", "at least 1 item"),
        ("models: {m: {checkpoint: c, seed: 1}}", "models.m", "preset"),
        ("models: {m: {preset: bert-9l}}", "models.m.preset", "'bert-6l'"),
        ("models: {m: {path: .}}", "models.m.path", "checkpoint"),
        ("models: {m: {checkpoint: spec.yaml}}", "models.m.checkpoint", "path"),
        ("models: {m: {preset: bert-3l, texts: [a]}}", "models.m", "tokenizer"),
        ("models: {m: {checkpoint: c, texts: no.txt}}", "models.m.texts", "not found"),
        ("shapes: [8]", "shapes[0]", "mapping"),
        ("shapes: [8by8]", "shapes[0]", "BATCHxSEQUENCE"),
        ("shapes: ['0x8']", "shapes[0].batch", "greater than or equal to 1"),
        ("shapes: [1x8, 1x8]", "", "name '1x8'"),
        ("models: {m: {checkpoint: c, texts: [a], shapes: ['1']}}", "", "sequence"),
        (
            "models: {m: {checkpoint: c, texts: [a], shapes: [{batch: 1, sequence: 8, lengths: [3]}]}}",
            "",
            "Remove lengths",
        ),
        ("shapes: [{batch: 1, lengths: [3]}]", "shapes[0]", "needs a sequence"),
        ("environments: {e: {python: 3.10}}", "environments.e.python", "quotes"),
        ("environments: {e: {install: [-e .]}}", "environments.e.install", "'-e .'"),
        ("environments: {e: {install: ['./none[all]']}}", "environments.e.install", "none"),
        ("environments: {e: {instal: [x]}}", "environments.e.instal", "'install'"),
    ],
)
def test_rejects_with_the_place_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, place: str, word: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "environments"))
    (found,) = [problem for problem in problems(tmp_path, changed(change)) if not problem.endswith("errors:")][:1]
    line, _, text = found.partition(": ")
    assert re.fullmatch(r"line \d", line)
    assert text.startswith(f"{place}: " if place else "")
    assert word in text.removeprefix(place)


def test_paths_of_an_environment_start_at_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = "environments: {e: {python: bin/python, install: ['./mine[all]', onnxruntime, 'a @ https://b/c']}}"
    declared = load(tmp_path, SMALL + text).environments["e"]
    assert declared.python == f"{tmp_path}/bin/python"
    assert declared.install == [f"{tmp_path}/mine[all]", "onnxruntime", "a @ https://b/c"]


def test_lists_all_problems_with_their_lines(tmp_path: Path) -> None:
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
    first, *others = problems(tmp_path, text)
    assert "3 errors" in first
    assert [found.partition(": ")[0::2] for found in others] == [
        ("line 4", others[0].partition(": ")[2]),
        ("line 7", "backends[0].threads: must be a valid integer, got 'two'"),
        ("line 8", "shapes: must be a valid list, got '8x128'"),
    ]
    assert others[0].startswith("line 4: models.m.sed: ")
    assert "'seed'" in others[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no keys"),
        ("- a\n", "no keys"),
        ("a: [\n", "line 2: not YAML"),
        ("a: \x00\n", "is not text"),
        ("? [a]\n: b\n", "line 1: not YAML"),
        ("models: {1: {preset: bert-3l}}\nbackends: [ort-cpu]\nshapes: [1x1]\n", "a key must be a string, got 1"),
    ],
)
def test_rejects_files_that_are_not_a_spec(tmp_path: Path, content: str, message: str) -> None:
    assert any(message in problem for problem in problems(tmp_path, content))


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not found"):
        reader.load(tmp_path / "none.yaml")
    (tmp_path / "spec.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="Cannot read"):
        reader.load(tmp_path / "spec.yaml")
    with pytest.raises(SpecError, match="Cannot read"):
        reader.load(tmp_path)


def test_the_quickstart_is_valid() -> None:
    spec = reader.load(Path(__file__).parents[3] / "matrix" / "quickstart.yaml")
    assert {entry.name for entry in spec.backends} == {"ort-cpu", "openvino", "reference"}
