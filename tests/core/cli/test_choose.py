"""``isorun choose``."""

import itertools
import json
from pathlib import Path

import pytest

import isorun
import sentence_models
from isorun.cli import main
from isorun.system.cache import ENVIRONMENT_VARIABLE
from isorun.tuning import backend
from isorun.tuning.timing import TimingBudget

pytestmark = pytest.mark.filterwarnings("ignore:There is no tokenizer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backend, "_BUDGET", TimingBudget(rounds=1, seconds=1.0))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")


def test_prints_one_recommendation_that_sessions_follow(bert: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["choose", str(bert), "--throughput", "--backend", "ort-cpu", "--tolerance", "0.97"]) == 0
    out, err = capsys.readouterr()
    assert "compiling ort-cpu in int8 (2 of 2)" in err
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("recommended") == 1
    assert "Use ort-cpu in " in out
    assert "texts/s" in out
    with isorun.Session(bert, precision="auto") as session:
        assert session.provenance.details["precision"]["goal"] == "throughput"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--latency", "--throughput"], "mutually exclusive"),
        (["--texts", "no-such.txt"], "no file no-such.txt"),
        (["--labels", "no-such.jsonl"], "no file no-such.jsonl"),
        (["--tolerance", "1.5"], "below 1"),
        (["--backend", "reference"], "never considers 'reference'"),
    ],
)
def test_rejects_wrong_usage(bert: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["choose", str(bert), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_labels_decide_instead_of_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = sentence_models.write_sentence_model(tmp_path / "model")
    words = [" ".join(letters) for letters in itertools.product("abc", repeat=4)]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "class": text[0]}) for text in words))
    arguments = ["choose", str(folder), "--backend", "ort-cpu", "--labels", str(path), "--tolerance", "0.5"]
    assert main([*arguments, "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert choice["labels"] == "81 texts of 3 classes"
    exact = next(candidate for candidate in choice["candidates"] if candidate["precision"] == "fp32")
    assert exact["task"]["name"] == "accuracy"
    assert exact["task"]["value"] == exact["task"]["base"] > 0.5
    assert set(exact["task"]["figures"]) == {"accuracy", "F1"}

    main([*arguments, "--quality", "0.999"])
    out = capsys.readouterr().out
    assert "accuracy" in out.splitlines()[0]
    assert ("inaccurate" in out, "failed" in out) == (True, False)
    assert "required: 0.999" in " ".join(out.split())  # 81 labels cannot show so little a loss, even of fp32
    assert max(map(len, out.splitlines())) <= 80


def test_labels_need_a_model_that_makes_vectors(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"text {index}", "class": str(index % 2)}) for index in range(30)))
    assert main(["choose", str(bert), "--labels", str(path)]) != 0
    assert "makes vectors" in " ".join(capsys.readouterr().err.split())
