"""Choosing a precision: mostly between fakes whose speed and error are set, once between real ones."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import isorun
import tiny
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.models import source as models
from isorun.parity.samples import MASKS
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache
from isorun.tuning import precision, record
from isorun.tuning.timing import TimingBudget
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport
from onnx_text import graph


@dataclass(frozen=True)
class Planted:
    """How a precision behaves: seconds per run, error, and what it raises."""

    seconds: float = 0.0
    error: float = 0.0
    at_compile: Exception | None = None
    at_run: Exception | None = None


@dataclass
class FakeExecutable(Executable):
    """Outputs that depend only on the feeds, plus the error that was set."""

    planted: Planted
    runs: int = 0
    closed: bool = False
    seen: list[bytes] = field(default_factory=list)

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        self.runs += 1
        if self.planted.at_run:
            raise self.planted.at_run
        time.sleep(self.planted.seconds)
        ids = feeds["input_ids"]
        self.seen.append(ids.tobytes())
        hidden = np.sin(ids[..., None] * np.arange(1, 33) + 1) * feeds["attention_mask"][..., None]
        hidden = hidden.astype(np.float32)
        noise = np.random.default_rng(0).standard_normal(hidden.shape) * self.planted.error
        return [hidden + noise.astype(np.float32), hidden.sum(axis=1)]

    def report(self) -> RuntimeReport:
        return RuntimeReport("fake", "fp32", {}, {})

    def close(self) -> None:
        self.closed = True


@dataclass
class Fake:
    """A backend with these precisions, and what it has compiled."""

    planted: Mapping[str, Planted]
    compiled: dict[str, FakeExecutable] = field(default_factory=dict)

    def backend(self) -> Backend:
        outer = self

        class FakeBackend(Backend):
            contract = 2
            capabilities = Capabilities(("primitive",), precisions=tuple(outer.planted), dynamic_shapes=True)

            def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
                planted = outer.planted[config.precision]
                if planted.at_compile:
                    raise planted.at_compile
                outer.compiled[config.precision] = executable = FakeExecutable(planted)
                return executable

        return FakeBackend("fake")


Choose = Callable[..., dict[str, Any]]


@pytest.fixture
def choose(bert: Path, tmp_path: Path) -> Choose:
    """Chooses for the tiny BERT, in an empty cache, and returns the note."""
    cache = Cache(tmp_path)
    source = models.open_model(bert, cache)

    def run(
        fake: Fake, tolerance: float = 0.99, padding: str = "keep", samples: Any = None, **config: Any
    ) -> dict[str, Any]:
        options = Options(precision="auto", padding=padding, tolerance=tolerance, calibration=samples)
        compiler = Compiler(source, options, cache)
        model, note = precision.compile_fastest(compiler, fake.backend(), CompileConfig(**config))
        assert model.config.precision == note["chosen"]
        return note

    return run


SLOW, FAST, FASTEST = Planted(0.012), Planted(0.006), Planted(0.0)


def test_chooses_the_fastest_precision_within_the_tolerance(choose: Choose):
    note = choose(Fake({"fp32": SLOW, "bf16": FAST, "fp8": Planted(0.0, error=0.01)}))
    assert (note["requested"], note["chosen"], note["measured"]) == ("auto", "fp8", "now")
    assert (note["judged_on"], note["timed_at"]) == ("random tokens", "1 x 40")
    assert set(note["requests"]) == {f"mask {kind}" for kind in MASKS}
    tested = {candidate["precision"]: candidate for candidate in note["candidates"]}
    assert min(tested, key=lambda name: tested[name]["milliseconds"]) == "fp8"
    assert tested["fp32"]["milliseconds"] >= 6
    assert tested["bf16"]["cosine"] == pytest.approx(1, abs=1e-12)
    assert 0.999 < tested["fp8"]["cosine"] < 1


def test_rejects_an_inaccurate_precision_and_reports_its_cosine(choose: Choose):
    note = choose(Fake({"fp32": SLOW, "bf16": FAST, "fp8": Planted(0.0, error=0.5)}))
    assert note["chosen"] == "bf16"
    (fp8,) = (candidate for candidate in note["candidates"] if candidate["precision"] == "fp8")
    assert fp8["milliseconds"] is None
    assert fp8["cosine"] < 0.99
    assert fp8["cosine"] == min(fp8["cosines"].values()) == fp8["cosines"][fp8["worst"]]
    assert fp8["reason"].startswith(f"{fp8['worst']}: last_hidden_state: cosine is")


def test_requires_a_margin_for_unseen_requests(choose: Choose):
    note = choose(Fake({"fp32": SLOW, "fp8": Planted(0.0, error=0.1)}))
    (fp8,) = (candidate for candidate in note["candidates"] if candidate["precision"] == "fp8")
    within = 1 - (1 - fp8["cosine"]) * 1.5  # within the tolerance, but without the margin
    assert choose(Fake({"fp32": SLOW, "fp8": Planted(0.0, error=0.1)}), tolerance=within)["chosen"] == "fp32"
    looser = 1 - (1 - fp8["cosine"]) * 2.5
    note = choose(Fake({"fp32": SLOW, "fp8": Planted(0.0, error=0.1)}), tolerance=looser)
    assert note["chosen"] == "fp8"
    assert looser < note["required"] < fp8["cosine"]


def test_judges_on_samples_held_out_of_calibration(choose: Choose):
    fake, samples = Fake({"fp32": SLOW, "fp8": FASTEST}), [tiny.feeds(3, 12, seed=seed) for seed in range(32)]
    note = choose(fake, samples=samples)
    judged = [feeds["input_ids"].tobytes() for feeds in samples[3::4]]
    assert fake.compiled["fp8"].seen[:8] == judged
    calibrated_on = {feeds["input_ids"].tobytes() for index, feeds in enumerate(samples) if index % 4 != 3}
    assert not calibrated_on & {*fake.compiled["fp8"].seen, *fake.compiled["fp32"].seen}
    assert note["requests"] == {"samples": 24}
    assert "given samples" in note["judged_on"]


def test_quality_needs_texts(tmp_path: Path):
    """Without a tokenizer, random tokens are judged, among which no neighbours are compared."""
    model = """
        texts (int64[batch, sequence] input_ids) => (float[batch, 4] sentence_embedding)
        <float[9, 4] table = {%s}, int64[1] middle = {1}>
        { tokens = Gather (table, input_ids)  sentence_embedding = ReduceSum <keepdims = 0> (tokens, middle) }
    """
    onnx.save(graph(model % ", ".join(map(str, np.arange(36) % 5))), tmp_path / "model.onnx")
    with pytest.raises(UnsupportedModel, match="tokenizer"):
        isorun.Session(tmp_path / "model.onnx", "ort-cpu", precision="auto", quality=0.9)
    with isorun.Session(tmp_path / "model.onnx", "ort-cpu", precision="auto") as session:
        assert "neighbours" not in session.provenance.details["precision"]


@pytest.mark.long
@pytest.mark.parametrize("tolerance", [0.999, 0.96])
def test_minilm_in_int8_is_within_a_loose_tolerance(minilm_model: Path, minilm_cache: Cache, tolerance: float):
    """The minimum cosine on held-out texts is 0.996: within 0.96 with a margin, not within 0.999."""
    with isorun.Session(
        minilm_model, "ort-cpu", precision="auto", tolerance=tolerance, cache_dir=minilm_cache.root
    ) as session:
        note = session.provenance.details["precision"]
    assert "isorun's texts" in note["judged_on"]
    (int8,) = (candidate for candidate in note["candidates"] if candidate["precision"] == "int8")
    assert 0.99 < int8["cosine"] < 0.999
    assert set(int8["cosines"]) == set(note["requests"]) >= {"prose", "punctuation", "languages"}
    assert bool(int8["reason"]) == (tolerance == 0.999)


def test_records_why_a_precision_failed(choose: Choose):
    missing = BackendUnavailable("fake", "there is no such arithmetic", "Use another.")
    note = choose(Fake({"fp32": SLOW, "bf16": Planted(at_compile=missing), "fp8": Planted(at_run=BackendFailed("no"))}))
    assert note["chosen"] == "fp32"
    reasons = {candidate["precision"]: candidate["reason"] for candidate in note["candidates"]}
    assert "there is no such arithmetic" in reasons["bf16"]
    assert reasons["fp8"] == "no"
    assert reasons["fp32"] == ""


def test_wider_precisions_are_not_candidates(choose: Choose):
    fake = Fake({"fp32": SLOW, "fp64": FASTEST})
    note = choose(fake)
    assert (note["chosen"], note["candidates"]) == ("fp32", [])
    assert set(fake.compiled) == {"fp32"}
    assert fake.compiled["fp32"].runs == 0


def test_closes_all_but_the_chosen_executable(choose: Choose):
    fake = Fake({"fp32": SLOW, "bf16": FASTEST})
    choose(fake)
    assert {name: executable.closed for name, executable in fake.compiled.items()} == {"fp32": True, "bf16": False}


def test_a_failure_closes_all_executables(choose: Choose):
    fake = Fake({"fp32": Planted(at_run=BackendFailed("it broke")), "bf16": FASTEST})
    with pytest.raises(BackendFailed, match="it broke"):
        choose(fake)
    assert all(executable.closed for executable in fake.compiled.values())


def test_a_choice_is_cached(choose: Choose):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    first, again = Fake(planted), Fake(planted)
    noted, remembered = choose(first), choose(again)
    assert remembered == {**noted, "measured": "earlier"}
    assert set(again.compiled) == {"bf16"}
    assert again.compiled["bf16"].runs == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 2},
        {"tolerance": 0.9},
        {"padding": "remove"},
        {"options": {"key": 1}},
        {"samples": [tiny.feeds(4, 12)]},
    ],
    ids=str,
)
def test_another_request_is_measured_again(choose: Choose, changes: dict[str, Any]):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    choose(Fake(planted))
    assert choose(Fake(planted), **changes)["measured"] == "now"
    assert choose(Fake(planted))["measured"] == "earlier"


def test_another_processor_is_measured_again(choose: Choose, monkeypatch: pytest.MonkeyPatch):
    planted = {"fp32": SLOW, "bf16": FASTEST}
    choose(Fake(planted))
    monkeypatch.setattr(record, "cpu_name", lambda: "another processor")
    assert choose(Fake(planted))["measured"] == "now"


def test_rejects_a_backend_without_fp32(choose: Choose):
    with pytest.raises(BackendUnavailable, match="compares with fp32"):
        choose(Fake({"fp8": FASTEST}))


def test_rejects_a_model_whose_feeds_cannot_be_generated():
    model = graph("g (seq(float[N]) x, float[M] z) => (int64 y, float[M] u) { y = SequenceLength (x) u = Neg (z) }")
    with pytest.raises(UnsupportedModel, match=r"'x': seq\(tensor\(float\)\).*Name a precision"):
        isorun.Session(model, "ort-cpu", precision="auto")


@pytest.mark.filterwarnings("ignore:Calibrated on")
def test_provenance_lists_the_candidates(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "_BUDGET", TimingBudget(rounds=1, seconds=1.0))
    samples = [tiny.feeds(4, 12)]
    for measured in ("now", "earlier"):
        with isorun.Session(bert, "openvino", precision="auto", calibration=samples, cache_dir=tmp_path) as session:
            provenance = session.provenance
            outputs = session.run(None, tiny.feeds())
        note = provenance.details["precision"]
        assert note["measured"] == measured
        assert {candidate["precision"] for candidate in note["candidates"]} == {"fp32", "bf16", "fp16", "int8"}
        assert note["chosen"] in provenance.precision.split("+")
        assert all(np.isfinite(array).all() for array in outputs)


def test_a_model_that_is_not_an_encoder():
    model = graph("""g (float[N,4] x) => (float[N,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y = MatMul (x, w) }""")
    with isorun.Session(model, "reference", precision="auto") as session:
        tested = session.provenance.details["precision"]["candidates"]
        assert {candidate["precision"] for candidate in tested} == {"fp32", "fp16", "bf16"}


def test_measuring_is_logged(choose: Choose, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="isorun.tuning.precision"):
        choose(Fake({"fp32": SLOW, "fp8": Planted(error=0.5)}))
    first, *rest = caplog.messages
    assert "fp32, fp8" in first
    assert any(line.startswith("fp8: ") and "cosine is" in line for line in rest)
