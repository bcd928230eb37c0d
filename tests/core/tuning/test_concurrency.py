"""Plans for concurrent requests: which are candidates, which is chosen, and what its record depends on."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import small_bert
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.models.source import open_model
from isorun.plugin.backend import Backend, Executable
from isorun.system.cache import Cache
from isorun.tuning import concurrency, record
from isorun.tuning.accuracy import Run
from isorun.tuning.concurrency import ConcurrencyPlan, default_plan, measured, remembered
from isorun.tuning.record import Subject
from isorun.tuning.timing import TimingBudget
from isorun.types import Availability, Capabilities, CompileConfig, LoweredModel


class FakeBackend(Backend):
    """A backend with these devices; nothing is compiled."""

    def __init__(self, *devices: str, **offers: Any) -> None:
        super().__init__("fake")
        self.capabilities = Capabilities(("primitive",), **{"sets_threads": True, "thread_safe": True, **offers})  # type: ignore[misc]
        self.devices = devices

    def probe(self) -> Availability:
        return Availability(True, devices=self.devices)

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        raise AssertionError


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    cache = Cache(tmp_path / "cache")
    return Compiler(open_model(small_bert.write(tmp_path / "model.onnx"), cache), Options(), cache)


def subject_of(compiler: Compiler, backend: Backend, device: str = "cpu", threads: int | None = 4) -> Subject:
    accelerators = tuple(backend.accelerators(device))
    return Subject(compiler, backend, CompileConfig("fp32", device, threads, accelerators=accelerators))


class Lanes:
    """Lanes on which a run takes some seconds, and some for each token, by a clock of each thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: float, token: float, *, share: bool = False) -> None:
        self.opened: list[ConcurrencyPlan] = []
        self.rows: list[int] = []
        self._run, self._token, self._share = run, token, share
        self._clock = threading.local()
        monkeypatch.setattr(concurrency, "time", SimpleNamespace(perf_counter=self._now))

    def _now(self) -> float:
        return getattr(self._clock, "now", 0.0)

    def __call__(self, plan: ConcurrencyPlan) -> Sequence[Run]:
        def run(feeds: Any) -> list[Any]:
            mask = feeds["attention_mask"]
            self.rows.append(len(mask))
            self._clock.now = (
                self._now() + self._run + self._token * (plan.lanes if self._share else 1) * np.count_nonzero(mask)
            )
            return []

        self.opened.append(plan)
        return [run] * plan.lanes


def test_batches_and_lanes_are_chosen_where_a_run_is_costly(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, lanes = subject_of(compiler, FakeBackend(), threads=2), Lanes(monkeypatch, 4e-3, 1e-5)
    plan = measured(subject, compiler.graphs.info, lanes)
    assert plan == ConcurrencyPlan(2, 1, 512)
    assert [(opened.lanes, opened.threads) for opened in lanes.opened] == [(1, None), (2, 1)]
    assert remembered(subject) == plan
    assert measured(subject, compiler.graphs.info, lanes) == plan
    assert len(lanes.opened) == 2


def test_the_cheapest_plan_is_chosen_among_equals(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each of two lanes takes twice as long for a token, neither lanes nor batches help."""
    subject = subject_of(compiler, FakeBackend(), threads=2)
    plan = measured(subject, compiler.graphs.info, Lanes(monkeypatch, 1e-5, 1e-4, share=True))
    assert plan == ConcurrencyPlan(1, None, 0)


def test_devices_may_batch(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend("GPU", devices=("cuda",), sets_threads=False)
    subject, lanes = subject_of(compiler, backend, "cuda", None), Lanes(monkeypatch, 4e-3, 0.0)
    assert default_plan(subject) == ConcurrencyPlan(2, None, 0)
    assert measured(subject, compiler.graphs.info, lanes) == ConcurrencyPlan(2, None, 4096)
    assert len(lanes.opened) == 1  # all plans share the session's own executable
    assert max(lanes.rows) > 64


def test_a_plan_that_fails_is_not_chosen(compiler: Compiler) -> None:
    subject = subject_of(compiler, FakeBackend(), threads=2)

    def open_lanes(plan: ConcurrencyPlan) -> Sequence[Run]:
        def run(feeds: Any) -> list[Any]:
            if plan.lanes == 2 or len(feeds["attention_mask"]) > 1:
                raise BackendFailed("no memory")
            return []

        return [run] * plan.lanes

    assert measured(subject, compiler.graphs.info, open_lanes) == ConcurrencyPlan(1, None, 0)


def test_a_backend_without_engines_for_the_shapes_has_the_default_plan(compiler: Compiler) -> None:
    subject = subject_of(compiler, FakeBackend("GPU", devices=("cuda",), sets_threads=False), "cuda", None)

    def run(feeds: Any) -> list[Any]:
        raise InvalidFeeds("no engine was built for this shape")

    assert measured(subject, compiler.graphs.info, lambda plan: [run] * plan.lanes) == default_plan(subject)
    assert remembered(subject) is None


def test_fails_if_every_plan_fails(compiler: Compiler) -> None:
    def run(feeds: Any) -> list[Any]:
        raise BackendFailed("no memory")

    with pytest.raises(BackendFailed, match="no memory"):
        measured(subject_of(compiler, FakeBackend(), threads=2), compiler.graphs.info, lambda plan: [run] * plan.lanes)


def test_measuring_ends_in_time(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_BUDGET", TimingBudget(rounds=10**6, seconds=0.3))
    start = time.perf_counter()
    subject = subject_of(compiler, FakeBackend(), threads=2)
    measured(subject, compiler.graphs.info, lambda plan: [lambda feeds: []] * plan.lanes)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("threads", "offers", "expected"),
    [
        (4, {}, (4, 1, 0)),
        (32, {}, (8, 4, 0)),
        (1, {}, (1, None, 0)),
        (4, {"thread_safe": False}, (1, None, 0)),
    ],
)
def test_default_plan(compiler: Compiler, threads: int, offers: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert default_plan(subject_of(compiler, FakeBackend(**offers), threads=threads)) == expected


def test_the_record_depends_on_the_device(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        names = [("NVIDIA A100",), ("NVIDIA H100",), ("NVIDIA H200",), ("NVIDIA H100", "NVIDIA H200")]
        return [subject_of(compiler, FakeBackend(*devices), "cuda").key("concurrency") for devices in names]

    before = keys()
    monkeypatch.setattr(record, "cpu_name", lambda: "another processor")
    assert len({*before, *keys()}) == 8


def test_the_record_depends_on_determinism(compiler: Compiler) -> None:
    deterministic = Compiler(compiler.source, Options(deterministic=True), compiler.cache)
    keys = [subject_of(session, FakeBackend()).key("concurrency") for session in (compiler, deterministic)]
    assert len(set(keys)) == 2
