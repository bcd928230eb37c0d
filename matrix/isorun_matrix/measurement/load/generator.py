"""Requests from MLPerf's LoadGen (``mlcommons-loadgen``), whose logs are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError
from isorun_matrix.measurement.load.figures import PERCENTILES, SLOTS, Trial
from isorun_matrix.measurement.load.targets import Target
from isorun_matrix.spec.load_scenario import Load

_PACKAGE = "mlcommons-loadgen"
_REQUESTS = {"server": 300, "single-stream": 100, "offline": 1}
"""The minimum of a measurement. Of 300, three are expected above the 99th percentile."""

_SLOTS = {"server": 1}  # others divide their time
_SUMMARY = "mlperf_log_summary.txt"


class Generator:
    """LoadGen with the settings of a scenario."""

    def __init__(self, scenario: Load, target: Target, sets: int, seed: int, logs: Path) -> None:
        try:
            import mlperf_loadgen
        except ImportError as error:
            raise IsorunError(
                f"`load` scenarios other than `closed` need the package {_PACKAGE}. Install it with "
                "`pip install 'isorun[load]'`"
            ) from error
        self._loadgen = mlperf_loadgen
        self.version = f"{_PACKAGE} {version(_PACKAGE)}"
        self._scenario, self._target, self._sets, self._seed, self._logs = scenario, target, sets, seed, logs
        self._count = self._issued = 0

    def trial(self, rate: float | None, typical: float) -> Trial:
        """One measurement; its logs are in a folder of its own."""
        loadgen = self._loadgen
        self._count += 1
        self._issued = 0
        folder = self._logs / f"loadgen-{self._count}"
        folder.mkdir(parents=True)
        output, logs = loadgen.LogOutputSettings(), loadgen.LogSettings()
        output.outdir, output.copy_summary_to_stdout = str(folder), False
        logs.log_output, logs.enable_trace = output, False
        system = loadgen.ConstructSUT(self._issue, lambda: None)
        library = loadgen.ConstructQSL(self._sets, self._sets, lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, self._settings(rate, typical), logs, "")
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        return read_summary((folder / _SUMMARY).read_text(encoding="utf-8"), rate, self._issued)

    def _issue(self, samples: Sequence[Any]) -> None:
        self._issued += len(samples)
        for sample in samples:
            self._target.submit(sample.index, partial(self._complete, sample.id))

    def _complete(self, number: int) -> None:
        self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(number, 0, 0)])

    def _settings(self, rate: float | None, typical: float) -> Any:
        names = {"single-stream": "SingleStream", "server": "Server", "offline": "Offline"}
        settings = self._loadgen.TestSettings()
        settings.scenario = getattr(self._loadgen.TestScenario, names[self._scenario.scenario])
        settings.mode = self._loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = int(self._scenario.seconds / _SLOTS.get(self._scenario.scenario, SLOTS) * 1000)
        settings.min_query_count = _REQUESTS[self._scenario.scenario]
        settings.single_stream_expected_latency_ns = int(typical * 1e9)
        settings.offline_expected_qps = 1 / typical
        if rate is not None:
            settings.server_target_qps = rate
            settings.server_target_latency_ns = int((self._scenario.p99_ms or 0) * 1e6)
            settings.server_target_latency_percentile = 0.99
        seed = self._seed + self._count
        settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed = seed, seed + 1, seed + 2
        return settings


def read_summary(text: str, rate: float | None, requests: int) -> Trial:
    """A measurement of a number of requests, from LoadGen's summary, which does not always state that number."""
    values = {
        name.strip(): float(value)
        for name, value in re.findall(r"^\s*([^:\n]+?)\s*:\s*([0-9.eE+]+)\s*$", text, flags=re.MULTILINE)
    }
    percentiles = [values.get(f"{percentile}.00 percentile latency (ns)") for percentile in PERCENTILES]
    offline = "Scenario : Offline" in text
    p50, p90, p99 = (None if offline or value is None else value / 1e6 for value in percentiles)
    rates = ("Completed samples per second", "Samples per second", "QPS w/o loadgen overhead")
    answered = next(values[name] for name in rates if name in values)
    return Trial(rate, requests, answered, p50, p90, p99)
