"""``isorun choose``."""

from __future__ import annotations

from pathlib import Path

import pytest

import isorun
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
        (["--tolerance", "1.5"], "below 1"),
        (["--backend", "reference"], "No backend 'reference'"),
    ],
)
def test_rejects_wrong_usage(bert: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["choose", str(bert), *arguments]) == 2
    assert message in capsys.readouterr().err
