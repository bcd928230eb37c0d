"""What a model is served as, by its files."""

import json
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import isorun
from isorun_serve.models import Models, Served
from isorun_serve.opening import named, open_models, task_of


def test_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(isorun.InvalidModel, match=r"no config\.json.*--task"):
        task_of(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", "classify"),
        ("BertForMaskedLM", "embed"),
        ("BertModel", "embed"),
        ("BertForTokenClassification", None),
        ("BertForQuestionAnswering", None),
    ],
)
def test_task_of_a_checkpoint(tmp_path: Path, architecture: str, task: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [architecture]}))
    if task is not None:
        assert task_of(tmp_path) == task
        return
    with pytest.raises(isorun.InvalidModel, match=r"--task NAME=embed"):  # and not served as an embedder in silence
        task_of(tmp_path)


@pytest.mark.parametrize(
    ("graph", "fits"),
    [
        ("(string[n] x) => (string[n] y) { y = Identity (x) }", True),
        ("(float x) => (float y) { y = Identity (x) }", True),
        ("(float[b, s, d] q, float[b, d, s] k) => (float[b, s, s] y) { y = MatMul (q, k) }", False),
        ("(float[n, k] a, float[k, m] b) => (float[n, m] y) { y = MatMul (a, b) }", False),
    ],
)
def test_models_are_served_whether_or_not_random_tensors_fit(
    graph: str, fits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}').SerializeToString()
    with isorun.Session(model, "ort-cpu") as session, caplog.at_level("WARNING", "isorun.serve"):
        models = Models([Served.of("odd", session)])
        models.warm_up(measure=False)
        assert models.accepting
    assert ["odd: not warmed up" in record.getMessage() for record in caplog.records] == ([] if fits else [True])


def test_names_the_option_for_a_cache_that_cannot_keep_measurements(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> None:
        raise isorun.CacheError("The cache folder cannot be written to.")

    monkeypatch.setattr(models["bert"], "warmup", measure)
    with pytest.raises(isorun.CacheError, match=r"^bert: The cache folder .*--no-measure"):
        Models([Served.of("bert", models["bert"])]).warm_up(measure=True)


def test_names_the_model_that_cannot_be_opened(tmp_path: Path) -> None:
    graph = "(bfloat16[n] x) => (bfloat16[n] y) { y = Identity (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}'), tmp_path / "half.onnx")
    with pytest.raises(isorun.UnsupportedModel, match=r"^half: ort-cpu does not support the input 'x'"):
        open_models(named([str(tmp_path / "half.onnx")], []), {"half": tmp_path / "half.onnx"}, {"backend": "ort-cpu"})


def test_a_reranker_has_one_class(folders: dict[str, Path]) -> None:
    models = named([str(folders["classifier"])], ["classifier=rerank"])
    with pytest.raises(isorun.UnsupportedModel, match=r"has 3 classes.*--task classifier=classify"):
        open_models(models, folders, {"backend": "ort-cpu"})


@pytest.mark.parametrize("name", ["a/ready", "a/infer", "a/versions/2", "a/"])
def test_names_that_no_path_reaches(name: str) -> None:
    with pytest.raises(isorun.InvalidArgument, match=f"name '{name}'.*NAME=MODEL"):
        named([f"{name}=model"], [])
    assert named(["organization/ready-model=model", "ready=model"], [])[0].name == "organization/ready-model"


def test_a_model_has_one_task() -> None:
    assert named(["m=a"], ["m=embed", "m=embed"])[0].task == "embed"
    with pytest.raises(isorun.InvalidArgument, match="Two tasks are chosen for 'm': embed and rerank"):
        named(["m=a"], ["m=embed", "m=rerank"])
