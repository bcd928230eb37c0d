import json
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun.parity import DEFAULT_TOLERANCES
from isorun_matrix.execution.plan import plan
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
rounds: 3
control: false
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


QUALITY = """
models: {m: {preset: bert-3l}}
backends: [reference]
shapes: [1x8]
quality: %s
"""


def test_quality(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"text {index % 30}" for index in range(40)))
    spec = load(tmp_path, QUALITY % "texts.txt")
    assert (len(spec.quality.texts), spec.quality.k, spec.quality.minimum) == (30, 10, 0.9)
    assert load(tmp_path, QUALITY % "{k: 5, minimum: 0.99}").quality.texts is None
    for wrong in ("{texts: [one, two]}", "{texts: texts.txt, k: 15}", "{k: 0}", "{minimum: 1.5}", "missing.txt"):
        with pytest.raises(SpecError):
            load(tmp_path, QUALITY % wrong)


def test_labels(tmp_path: Path) -> None:
    pairs = [{"texts": [f"one {index}", "other"], "score": index} for index in range(30)]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    spec = load(tmp_path, QUALITY % "{labels: labels.jsonl, minimum: 0.95}")
    assert spec.quality.labels == pairs
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec  # as run.json has it
    (workload,) = plan(spec, 0).workloads
    assert (len(workload.search), workload.search[1], workload.labels) == (31, "other", pairs)
    (tmp_path / "few.jsonl").write_text(json.dumps(pairs[0]))
    (tmp_path / "damaged.jsonl").write_text("{")
    names = ("missing.jsonl", "few.jsonl", "damaged.jsonl")
    for wrong in (*names, "labels.jsonl, k: 3", "labels.jsonl, texts: [a]", "[1]", "[{when: 2026-01-01}]"):
        with pytest.raises(SpecError):
            load(tmp_path, QUALITY % f"{{labels: {wrong}}}")
    (problem,) = problems(tmp_path, QUALITY % "{labels: [{text: a, class: b}, {text: a, class: c}]}")
    assert "labels, item 2" in problem


LENGTHS = "shapes: [{batch: 2, sequence: 9, lengths: %s}]"


def test_lengths(tmp_path: Path) -> None:
    text = SMALL.replace("shapes: [8x128]", LENGTHS)
    shape = load(tmp_path, text % "[1, 9]").shapes_of("m")[0]
    assert (shape.lengths, shape.name) == ([1, 9], "2x9-lengths")
    shape = load(tmp_path, text % "{distribution: lognormal, median: 4}").shapes_of("m")[0]
    assert isinstance(shape.lengths, Lognormal)
    assert shape.name == "2x9-lognormal"

    (problem,) = problems(tmp_path, text % "{distribution: uniform, seed: -1}")
    assert "lengths.seed: must be greater than or equal to 0" in problem


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ("{batch: [1, 8], sequence: [4, 9]}", ["1x4", "1x9", "8x4", "8x9"]),
        ("{batch: [1, 8], sequence: 9, lengths: [3]}", ["1x9-lengths", "8x9-lengths"]),
        ("{batch: [1, 8], sequence: 9, name: short}", ["1x9-short", "8x9-short"]),
        ("{batch: [1, 8], dims: {width: 7}}", ["1", "8"]),
        ("{batch: [1, 8], dims: {width: 7}, name: wide}", ["1-wide", "8-wide"]),
    ],
)
def test_a_list_of_sizes_is_a_shape_for_each_also_in_a_recorded_spec(
    shape: str, names: list[str], tmp_path: Path
) -> None:
    spec = load(tmp_path, SMALL.replace("8x128", shape))
    assert [form.name for form in spec.shapes_of("m")] == names
    recorded = spec.model_dump(mode="json")
    assert Spec.model_validate(recorded) == spec
    assert [form["name"] for form in recorded["shapes"]] == names


@pytest.mark.parametrize("name", ["quickstart", "gpu"])
def test_shipped_specs_are_valid(name: str) -> None:
    spec = reader.load(Path(__file__).parents[3] / "matrix" / f"{name}.yaml")
    assert spec.models
    assert spec.backends


def test_reports_every_problem_at_once(tmp_path: Path) -> None:
    lines = problems(
        tmp_path,
        """\
x-common: &common {preset: bert-3l}
models:
  m: {<<: *common, sed: 3}
  n: *common
backends:
  - {name: ort-cpu, threads: [1, 2], options: {bogus: 1}}
  - opnvino
  - {name: openvino, precisions: [int9, bf61]}
  - {name: openvino, label: y, threads: 0}
shapes: [8x128, 7y]
secnds: 3
seed: 2026-01-01
environments: {old: {install: ["onnxruntime==1.15.0"]}}
""",
    )
    assert lines[0] == "spec.yaml has 10 errors:"
    starts = [line.partition(": ")[2].partition(": ")[0] for line in lines[1:]]
    places = """
        models.m.sed backends[0].options.bogus backends[1].name backends[2].precisions[0]
        backends[2].precisions[1] backends[3].threads shapes[1] secnds seed environments.old.install[0]
    """
    assert sorted(starts) == sorted(places.split())
    numbers = [int(line.removeprefix("line ").partition(":")[0]) for line in lines[1:]]
    assert numbers == sorted(numbers)
    assert "onnxruntime 1.15.0 is not supported (required: onnxruntime>=" in lines[-1]


@pytest.mark.parametrize(
    "parts",
    [
        "backends: [ort-cpu, {name: ort-cpu, label: 'two, t=1'}]",
        "backends: [{name: ort-cpu, lable: one}, ort-cpu]",
        "backends: [{name: ort-cpu, label: 7}]\nexclude: [{backend: '7'}]",
        "backends: [{name: ort-cpu, precisions: bf16}]\ntolerances: {odd: {rms: 0.5}}",
        "backends: [{name: ort-cpu, environment: e}]\nenvironments: {e: {python: '3.11', install: 5}}",
        "backends: [{name: ort-cpu, shapes: [8x128], machines: [5]}]\nmachines: {zen: {}}",
        "backends: [{name: ort-cpu, machines: [zen, zen]}]\nmachines: {zen: {}}",
        "backends: [ort-cpu]\ninclude: [{backend: openvino}]",
    ],
)
def test_one_mistake_is_one_problem(parts: str, tmp_path: Path) -> None:
    text = f"models: {{m: {{preset: bert-3l}}}}\nshapes: [8x128]\n{parts}\n"
    assert len(problems(tmp_path, text)) == 1


def test_rejects_a_model_that_no_backend_runs(tmp_path: Path) -> None:
    models = "{m: {preset: bert-3l}, n: {preset: bert-3l, shapes: [1x8]}}"
    text = f"models: {models}\nbackends: [{{name: ort-cpu, shapes: [8x128]}}]\nshapes: [8x128]\n"
    (problem,) = problems(tmp_path, text)
    assert "models.n: no backend runs at a shape of model 'n'" in problem


@pytest.mark.parametrize(
    ("key", "place", "reason"),
    [
        ("precisions: [fp32, fp32]", "precisions", "'fp32' twice"),
        ("masks: [left, left]", "masks", "'left' twice"),
        ("precisions: []", "precisions", "must not be empty"),
        ("environments: {modèle: {}}", "environments.modèle", "must be of ASCII letters, digits, dots"),
        ("precisions: [fp23]", "precisions[0]", "unknown precision 'fp23'; did you mean 'fp32'?"),
        ("device: cuda", "device", "ort-cpu does not support device 'cuda'"),
    ],
)
def test_settings_of_all_backends_are_checked(key: str, place: str, reason: str, tmp_path: Path) -> None:
    text = f"models: {{m: {{preset: bert-3l}}}}\nbackends: [ort-cpu]\nshapes: [1x8]\n{key}\n"
    message = " ".join(problems(tmp_path, text))
    assert f" {place}: " in message
    assert reason in message


def test_anchors_and_merged_keys(tmp_path: Path) -> None:
    text = "x-fast: &fast {name: openvino, precisions: [bf16], threads: 2}\n" + SMALL.replace(
        "[ort-cpu]", "[{<<: *fast, threads: [1, 4]}]"
    )
    spec = load(tmp_path, text)
    assert [variant.label for variant in spec.variants] == ["openvino.t1", "openvino.t4"]
    assert spec.variants[0].precisions == ["bf16"]


def test_machines_choose_backends_and_models(tmp_path: Path) -> None:
    text = """
models: {a: {preset: bert-3l}, b: {preset: bert-3l, machines: [zen]}}
backends: [ort-cpu, {name: openvino, machines: [xeon]}]
shapes: [1x8]
machines: {zen: {labels: {cpu: zen}}, xeon: {cost: 0.5}}
"""
    spec = load(tmp_path, text)
    assert spec.is_divided
    cells = {
        name: [(model, chosen.name) for model, _, chosen, _ in spec.on(name).combinations()] for name in spec.machines
    }
    assert cells == {"zen": [("a", "ort-cpu"), ("b", "ort-cpu")], "xeon": [("a", "ort-cpu"), ("a", "openvino")]}
    lines = problems(tmp_path, text.replace("[xeon]", "[xenon]").replace("backends: [ort-cpu,", "backends: ["))
    assert "unknown machine 'xenon'" in lines[1]
    assert [line.partition(": ")[2].partition(".")[0] for line in lines[2:]] == ["machines", "machines"]
    assert all("no cell runs on this machine" in line for line in lines[2:])
