"""Checks of what follows a failed run: no later run, and none on another thread, is wrong or refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isorun.errors import BackendFailed
from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.checks.concurrency import assert_close, in_threads
from isorun_conformance.sample_models import BEST_THREE, parsed

_RUNS = 50
_SHAPES = ((2, 10), (1, 10), (3, 7))


class Recovery(Checks):
    """Runs after failed ones. Unless the backend declares ``usable_after_failure``, the session compiles the model
    again, so that these checks test that, too."""

    @proves("recovery")
    def test_runs_after_a_failed_run_are_right(self) -> None:
        with self._failing_session() as session:
            for number in range(_RUNS):
                if number % 5 == 0:
                    _fail(session)
                feeds, expected = self._request(number)
                message = f"run {number % 5 + 1} after a failed one is wrong"
                assert_close(session.run(None, feeds), [expected], message)

    @proves("recovery")
    def test_runs_beside_a_failed_run_are_right(self) -> None:
        """Two threads: every third run of one of them fails."""
        requests = [self._request(number) for number in range(_RUNS)]
        with self._failing_session() as session:
            together = threading.Barrier(2)

            def work(thread: int) -> None:
                together.wait(60)
                for number, (feeds, expected) in enumerate(requests):
                    if thread == 0 and number % 3 == 0:
                        _fail(session)
                    assert_close(session.run(None, feeds), [expected], "a run beside a failed one is wrong")

            in_threads(work, calls=2, threads=2)

    @proves("damaged cache")
    def test_damaged_cache_is_made_again(self) -> None:
        """As a process leaves it that is killed while it writes."""
        self.under_test.require_available()
        model = self.under_test.encoder()
        lowered = self.under_test.lowered(model)
        folder = self.under_test.folder / "damaged-cache"
        config = replace(self.under_test.config, cache_dir=str(folder))

        def outputs() -> dict[str, Any]:
            names = lowered.info.output_names
            with closing(self.under_test.backend.compile(lowered, config)) as executable:
                return dict(zip(names, executable.run(names, model.feeds()), strict=True))

        expected = outputs()
        for kept in (0.5, 0):
            files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
            if not files:
                pytest.skip(f"{DOES_NOT_APPLY}: it keeps no files in config.cache_dir")
            for path in files:
                path.chmod(0o600)
                os.truncate(path, int(path.stat().st_size * kept))
            cut = ", ".join(str(path.relative_to(folder)) for path in files[:3])
            for name, array in outputs().items():
                what = f"{name} is wrong after files of the cache lost their ends: {cut}"
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=what)

    @contextmanager
    def _failing_session(self) -> Iterator[Any]:
        self.under_test.require(
            self.under_test.capabilities.dynamic_shapes, "dynamic shapes, without which no run can fail"
        )
        with self.under_test.open_or_skip(parsed(BEST_THREE)) as session:
            try:
                session.run(None, {"x": np.ones((2, 1, 8), np.float32)})
            except BackendFailed:
                yield session
            else:
                pytest.skip("this backend computes the model that fails elsewhere")

    def _request(self, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        x = np.random.default_rng(seed).standard_normal((*_SHAPES[seed % 3], 8), np.float32)
        centered = x - x.mean(axis=-1, keepdims=True, dtype=np.float64)
        scores = (centered / np.sqrt(x.var(axis=-1, keepdims=True, dtype=np.float64) + 1e-5)) @ np.arange(8.0)
        return {"x": x}, -np.sort(-scores, axis=1)[:, :3]


def _fail(session: Any) -> None:
    with pytest.raises(BackendFailed):
        session.run(None, {"x": np.ones((2, 1, 8), np.float32)})
