"""Choosing a backend and a precision: real runtimes and misbehaving ones, each in its own process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import isorun
import tiny
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidArgument
from isorun.models.source import open_model
from isorun.plugin import listing
from isorun.system.cache import Cache
from isorun.tuning import backend as best_backend
from isorun.tuning import candidates, precision
from isorun.tuning.accuracy import Candidate
from isorun.tuning.backend import Choice
from isorun.tuning.candidates import best
from isorun.tuning.timing import TimingBudget
from isorun_conformance import fakes

pytestmark = pytest.mark.filterwarnings("ignore:There is no tokenizer")
NAMES = {name: fakes.NAMES[name] for name in ("fake-echo", "fake-crashing")}
QUICK = TimingBudget(rounds=1, seconds=1.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_BUDGET", QUICK)


class Chosen(NamedTuple):
    choice: Choice
    cache_dir: Path
    said: list[str]


def _choose(model: Path, folder: Path, names: list[str], goal: str = best_backend.LATENCY, **options: Any) -> Chosen:
    messages: list[str] = []
    cache = Cache(folder)
    compiler = Compiler(open_model(model, cache), Options(precision="auto", **options), cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_backend, "_BUDGET", QUICK)
        patch.setattr(candidates, "_TURN_SECONDS", 0.05)
        return Chosen(best_backend.choose(compiler, goal, names, messages.append), folder, messages)


@pytest.fixture(scope="module")
def chosen(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chosen]:
    """A choice between two runtimes, one that returns nonsense, and one that crashes."""
    with fakes.installed(NAMES):
        yield _choose(bert, tmp_path_factory.mktemp("chosen"), ["ort-cpu", "openvino", *NAMES], tolerance=0.97)


def test_measures_every_precision_of_every_backend(chosen: Chosen):
    rows = {(candidate.backend, candidate.precision): candidate for candidate in chosen.choice.candidates}
    assert {name for name, _ in rows} == {"ort-cpu", "openvino", *NAMES}
    assert {precision for name, precision in rows if name == "openvino"} == {"fp32", "bf16", "fp16", "int8"}
    for name in ("ort-cpu", "openvino"):
        row = rows[name, "fp32"]
        assert (row.reason, round(row.cosine or 0, 6)) == ("", 1.0)
        assert row.milliseconds
    assert chosen.choice.base == "ort-cpu"
    assert any("openvino in bf16" in text for text in chosen.said)


def test_a_candidate_that_fails_costs_its_own_row(chosen: Chosen):
    rows = {candidate.backend: candidate for candidate in chosen.choice.candidates}
    assert "SIGSEGV" in rows["fake-crashing"].reason
    assert rows["fake-echo"].reason
    assert rows["fake-crashing"].milliseconds is rows["fake-echo"].milliseconds is None
    assert chosen.choice.backend in ("ort-cpu", "openvino")


def test_a_session_runs_what_was_chosen(chosen: Chosen, bert: Path):
    expected = (chosen.choice.backend, chosen.choice.precision)
    for outputs in (None, ["pooler_output"]):
        with isorun.Session(bert, precision="auto", outputs=outputs, cache_dir=chosen.cache_dir) as session:
            provenance = session.provenance
            assert all(np.isfinite(array).all() for array in session.run(None, tiny.feeds()))
        note = provenance.details["precision"]
        assert (provenance.backend, note["chosen"], note["measured"]) == (*expected, "by `isorun choose`")
        assert len(note["candidates"]) == len(chosen.choice.candidates)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"threads": 17}, "`threads` to 17"),
        ({"padding": "keep"}, "`padding` to 'keep'"),
        ({"tolerance": 0.5}, "tolerance"),
        ({"calibration": [tiny.feeds(4, 12)]}, "`calibration`"),
        ({"backend_options": {"inter_op_threads": 1}}, "`options`"),
        ({"deterministic": True}, "`deterministic`"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_does_not_hold_for_other_arguments(
    chosen: Chosen, bert: Path, arguments: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
):
    cache = Cache(chosen.cache_dir)
    compiler = Compiler(open_model(bert, cache), Options(precision="auto", **arguments), cache)
    assert best_backend.remembered(compiler, listing.candidates(cache)) is None
    assert reason in caplog.text


def test_a_choice_is_of_a_model_and_its_tokenizer(chosen: Chosen, bert: Path, tmp_path: Path):
    cache = Cache(chosen.cache_dir)

    def holds() -> bool:
        compiler = Compiler(open_model(copy, cache), Options(precision="auto"), cache)
        return best_backend.remembered(compiler, listing.candidates(cache)) is not None

    copy = tmp_path / "bert.onnx"
    copy.write_bytes(bert.read_bytes())
    assert holds()
    copy.with_name("tokenizer.json").write_text("{}")
    assert not holds()


def test_a_choice_does_not_outlive_the_machine(
    chosen: Chosen, bert: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(best_backend, "cpu_name", lambda: "another processor")
    cache = Cache(chosen.cache_dir)
    compiler = Compiler(open_model(bert, cache), Options(precision="auto"), cache)
    assert best_backend.remembered(compiler, listing.candidates(cache)) is None
    assert "now another processor. Run `isorun choose` again" in caplog.text


@pytest.mark.long
def test_a_named_backend_is_not_replaced(chosen: Chosen, bert: Path):
    with isorun.Session(bert, "reference", precision="auto", cache_dir=chosen.cache_dir) as session:
        assert session.provenance.backend == "reference"


def test_rejects_an_unknown_backend(bert: Path, tmp_path: Path):
    with pytest.raises(BackendNotFound, match=r"'openvio'.*'openvino'"):
        _choose(bert, tmp_path, ["ort-cpu", "openvio"])
    with pytest.raises(InvalidArgument, match="'reference'"):
        _choose(bert, tmp_path, ["ort-cpu", "reference"])


def test_says_why_no_named_backend_is_available(bert: Path, tmp_path: Path):
    with pytest.raises(BackendUnavailable, match="onnxruntime") as caught:
        _choose(bert, tmp_path, ["ort-cuda"])
    assert caught.value.backend == "ort-cuda"


@pytest.mark.long
def test_int8_is_calibrated_as_it_was_judged(bert: Path, tmp_path: Path):
    """The texts are kept for that, readable by their owner only."""
    cache = Cache(tmp_path)
    texts = [f"text {number} about bread" for number in range(8)]
    compiler = Compiler(open_model(bert, cache), Options(precision="auto", calibration=texts), cache)
    int8 = Candidate(backend="ort-cpu", precision="int8", milliseconds=1.0, cosine=0.999)
    about = best_backend._about(compiler.options, listing.candidates(cache), "ort-cpu")
    choice = Choice(
        backend="ort-cpu",
        precision="int8",
        goal=best_backend.LATENCY,
        tolerance=0.99,
        required=0.995,
        candidates=(int8,),
        skipped=(),
        base="ort-cpu",
        judged_on="",
        requests=1,
        timed_on="",
        date="",
        quality=None,
        about=about,
    )
    best_backend._remember(compiler, choice, texts)
    others = Compiler(compiler.source, Options(precision="auto"), cache)
    remembered = best_backend.remembered(others, listing.candidates(cache))
    assert remembered is not None
    assert remembered == (choice, texts)
    (kept,) = tmp_path.glob("tuning/*/calibration.json")
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("times", "expected"),
    [((10.0, 9.8, 9.7), "fp32"), ((10.0, 6.1, 6.0), "bf16"), ((10.0, 6.1, 5.0), "int8")],
    ids=["noise", "more accurate", "faster"],
)
def test_prefers_accuracy_to_five_percent_of_speed(times: tuple[float, ...], expected: str):
    figures = zip(("fp32", "bf16", "int8"), times, (1.0, 0.9999, 0.996), strict=True)
    candidates = [
        Candidate(backend="a", precision=name, slowdown=taken / min(times), cosine=cosine)
        for name, taken, cosine in figures
    ]
    preferred = best(candidates)
    assert preferred is not None
    assert preferred.precision == expected
