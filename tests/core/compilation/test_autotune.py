"""Choices between precisions whose speed and error are planted, and one between real ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import isorun
import tiny
from isorun.compilation import autotune
from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.models import source as models
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport


@dataclass(frozen=True)
class Planted:
    """How a precision behaves: how long a run takes, how far off it is, and what it raises."""

    seconds: float = 0.0
    error: float = 0.0
    at_compile: Exception | None = None
    at_run: Exception | None = None


@dataclass
class FakeExecutable(Executable):
    """Outputs that the feeds alone decide, and the error that was planted."""

    planted: Planted
    runs: int = 0
    closed: bool = False

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        self.runs += 1
        if self.planted.at_run:
            raise self.planted.at_run
        time.sleep(self.planted.seconds)
        ids, mask = feeds["input_ids"], feeds["attention_mask"]
        hidden = np.sin(ids[..., None] * np.arange(1, 33) + 1).astype(np.float32) * mask[..., None]
        noise = np.random.default_rng(0).standard_normal(hidden.shape) * self.planted.error
        return [hidden + noise.astype(np.float32), hidden.sum(axis=1)]

    def report(self) -> RuntimeReport:
        return RuntimeReport("fake", "fp32", {}, {})

    def close(self) -> None:
        self.closed = True


@dataclass
class Fake:
    """A backend whose precisions are planted, and what it has compiled."""

    planted: Mapping[str, Planted]
    compiled: dict[str, FakeExecutable] = field(default_factory=dict)

    def backend(self) -> Backend:
        outer = self

        class FakeBackend(Backend):
            capabilities = Capabilities(("primitive",), precisions=tuple(outer.planted), dynamic_shapes=True)

            def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
                planted = outer.planted[config.precision]
                if planted.at_compile:
                    raise planted.at_compile
                outer.compiled[config.precision] = made = FakeExecutable(planted)
                return made

        return FakeBackend("fake")


Choose = Callable[..., dict[str, Any]]


@pytest.fixture
def choose(bert: Path, tmp_path: Path) -> Choose:
    """Chooses for the tiny BERT, in a cache of its own, and gives what was noted."""
    cache = Cache(tmp_path)
    source = models.open_model(bert, cache)

    def run(fake: Fake, tolerance: float = 0.99, padding: str = "keep", **config: Any) -> dict[str, Any]:
        *_, chosen, note = autotune.compile_fastest(
            fake.backend(), source, CompileConfig(**config), padding, cache, tolerance
        )
        assert chosen.precision == note["chosen"]
        return note

    return run


SLOW, FAST, FASTEST = Planted(0.006), Planted(0.003), Planted(0.0)


def test_the_fastest_of_those_within_the_tolerance(choose: Choose):
    note = choose(Fake({"fp32": SLOW, "bf16": FAST, "fp8": Planted(0.0, error=0.01)}))
    assert (note["asked"], note["chosen"], note["measured"]) == ("auto", "fp8", "now")
    assert (note["compared_on"], note["timed_at"]) == ("random tokens", "1 x 40")
    tried = {each["precision"]: each for each in note["tried"]}
    assert tried["fp32"]["milliseconds"] > tried["bf16"]["milliseconds"] > tried["fp8"]["milliseconds"]
    assert tried["fp32"]["milliseconds"] >= 6
    assert tried["bf16"]["cosine"] == pytest.approx(1, abs=1e-12)
    assert 0.999 < tried["fp8"]["cosine"] < 1


def test_what_is_off_is_out_with_the_figure_however_fast(choose: Choose):
    note = choose(Fake({"fp32": SLOW, "bf16": FAST, "fp8": Planted(0.0, error=0.5)}))
    assert note["chosen"] == "bf16"
    (out,) = (each for each in note["tried"] if each["precision"] == "fp8")
    assert out["milliseconds"] is None
    assert out["cosine"] < 0.99
    assert out["reason"].startswith("last_hidden_state: cosine is")


def test_the_tolerance_is_the_callers(choose: Choose):
    planted = {"fp32": SLOW, "fp8": Planted(0.0, error=0.1)}
    assert choose(Fake(planted), tolerance=0.9)["chosen"] == "fp8"
    assert choose(Fake(planted), tolerance=0.9999)["chosen"] == "fp32"


def test_an_output_of_another_size_is_out_though_its_cosine_is_perfect(choose: Choose, monkeypatch: pytest.MonkeyPatch):
    run = FakeExecutable.run

    def doubled(self: FakeExecutable, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        return [array * (2 if self.planted is FASTEST else 1) for array in run(self, output_names, feeds)]

    monkeypatch.setattr(FakeExecutable, "run", doubled)
    assert choose(Fake({"fp32": SLOW, "fp8": FASTEST}))["chosen"] == "fp32"


def test_minilm_in_int8_is_near_enough_on_text(minilm_model: Path, minilm_cache: Cache):
    with isorun.Session(minilm_model, "ort-cpu", precision="auto", cache_dir=minilm_cache.root) as session:
        note = session.provenance.details["precision"]
    assert note["compared_on"] == "isorun's sentences"
    (tried,) = (each for each in note["tried"] if each["precision"] == "int8")
    assert tried["cosine"] >= 0.99
    assert tried["reason"] == ""
    assert tried["milliseconds"] > 0


def test_what_is_hardly_faster_does_not_replace_fp32():
    tried = [autotune.Tried("fp32", 10.0, 1.0, ""), autotune.Tried("bf16", 9.8, 1.0, "")]
    assert autotune._fastest(tried) == "fp32"


def test_what_cannot_be_had_is_noted(choose: Choose):
    missing = BackendUnavailable("fake", "there is no such arithmetic", "Ask for another.")
    note = choose(Fake({"fp32": SLOW, "bf16": Planted(at_compile=missing), "fp8": Planted(at_run=BackendFailed("no"))}))
    assert note["chosen"] == "fp32"
    reasons = {each["precision"]: each["reason"] for each in note["tried"]}
    assert "there is no such arithmetic" in reasons["bf16"]
    assert reasons["fp8"] == "no"
    assert reasons["fp32"] == ""


def test_wider_precisions_are_no_candidates(choose: Choose):
    fake = Fake({"fp32": SLOW, "fp64": FASTEST})
    note = choose(fake)
    assert (note["chosen"], note["tried"], note["measured"]) == ("fp32", [], "not: it computes in nothing else")
    assert set(fake.compiled) == {"fp32"}
    assert fake.compiled["fp32"].runs == 0


def test_only_the_chosen_one_stays_open(choose: Choose):
    fake = Fake({"fp32": SLOW, "bf16": FASTEST})
    choose(fake)
    assert {name: each.closed for name, each in fake.compiled.items()} == {"fp32": True, "bf16": False}


def test_a_failure_leaves_nothing_open(choose: Choose):
    fake = Fake({"fp32": Planted(at_run=BackendFailed("it broke")), "bf16": FASTEST})
    with pytest.raises(BackendFailed, match="it broke"):
        choose(fake)
    assert all(each.closed for each in fake.compiled.values())


def test_a_choice_is_remembered(choose: Choose):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    first, again = Fake(planted), Fake(planted)
    noted, remembered = choose(first), choose(again)
    assert remembered == {**noted, "measured": "earlier"}
    assert set(again.compiled) == {"bf16"}
    assert again.compiled["bf16"].runs == 0


@pytest.mark.parametrize(
    "other",
    [{"threads": 2}, {"tolerance": 0.9}, {"padding": "remove"}, {"options": {"key": 1}}, {"device": "gpu"}],
    ids=str,
)
def test_a_choice_is_for_what_was_asked(choose: Choose, other: dict[str, Any]):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    choose(Fake(planted))
    assert choose(Fake(planted), **other)["measured"] == "now"
    assert choose(Fake(planted))["measured"] == "earlier"


def test_a_choice_is_for_this_machine(choose: Choose, monkeypatch: pytest.MonkeyPatch):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    choose(Fake(planted))
    monkeypatch.setattr(autotune, "cpu_name", lambda: "another processor")
    assert choose(Fake(planted))["measured"] == "now"


def test_without_fp32_there_is_nothing_to_compare_with(choose: Choose):
    with pytest.raises(BackendUnavailable, match="compares with fp32"):
        choose(Fake({"fp8": FASTEST}))


def test_a_model_that_cannot_be_fed_has_to_be_told_its_precision():
    text = '<ir_version: 10, opset_import: ["" : 17]> g (string[N] x) => (string[N] y) { y = Identity (x) }'
    with pytest.raises(UnsupportedModel, match=r"Input 'x' is tensor\(string\).*Name a precision"):
        isorun.Session(onnx.parser.parse_model(text), "openvino", precision="auto")


@pytest.mark.parametrize(
    ("precision", "tolerance", "message"),
    [
        ("bf16", 0.99, "with precision='bf16' nothing is chosen by it"),
        ("auto", 1.0, "above 0 and below 1"),
        ("auto", 0.0, "above 0 and below 1"),
    ],
)
def test_a_tolerance_that_means_nothing(bert: Path, precision: str, tolerance: float, message: str):
    with pytest.raises(ValueError, match=message):
        isorun.Session(bert, precision=precision, tolerance=tolerance)


@pytest.mark.filterwarnings("ignore:Calibrated on")
def test_a_session_says_what_was_tried(bert: Path, tmp_path: Path):
    samples = [tiny.feeds(4, 12)]
    for measured in ("now", "earlier"):
        with isorun.Session(bert, "openvino", precision="auto", calibration=samples, cache_dir=tmp_path) as session:
            provenance = session.provenance
            outputs = session.run(None, tiny.feeds())
        note = provenance.details["precision"]
        assert note["measured"] == measured
        assert {each["precision"] for each in note["tried"]} == {"fp32", "bf16", "int8"}
        assert note["chosen"] in provenance.precision.split("+")
        assert all(np.isfinite(array).all() for array in outputs)


@pytest.mark.filterwarnings("ignore:Calibrated on")
def test_what_int8_is_calibrated_on_is_part_of_the_choice(bert: Path, tmp_path: Path):
    def measured(samples: list[dict[str, np.ndarray]]) -> str:
        with isorun.Session(bert, "ort-cpu", precision="auto", calibration=samples, cache_dir=tmp_path) as session:
            return session.provenance.details["precision"]["measured"]

    assert measured([tiny.feeds(4, 12)]) == "now"
    assert measured([tiny.feeds(4, 12)]) == "earlier"
    assert measured([tiny.feeds(4, 12, seed=1)]) == "now"


def test_a_model_that_is_no_encoder():
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y = MatMul (x, w) }"""
    with isorun.Session(onnx.parser.parse_model(text), "reference", precision="auto") as session:
        assert {each["precision"] for each in session.provenance.details["precision"]["tried"]} == {"fp32", "fp16"}
