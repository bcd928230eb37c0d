"""Checks that a session computes the same whatever else there is: other sessions, threads, forks, other settings."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from isorun import Session
from isorun.errors import IsorunError
from isorun.types import devices
from isorun_conformance.backend_under_test import named
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import four_outputs
from isorun_conformance.sample_models import UNKNOWN_OPERATOR, dense, parsed

_FORK_SECONDS = 120


class Circumstances(Checks):
    """One session beside others, and what an application may do."""

    @proves("independent sessions")
    def test_models_that_differ_in_their_weights_only(self) -> None:
        """Same names, same structure: what is kept by either of them belongs to another model."""
        models = [dense(seed=seed) for seed in range(3)]
        for _ in range(2):
            with ExitStack() as stack:
                sessions = [stack.enter_context(self.under_test.open(model)) for model in models]
                for model, session in (*zip(models, sessions, strict=True), (models[0], sessions[0])):
                    what = "a model beside others that differ in their weights"
                    self.under_test.assert_accurate(model, session, model.feeds(), what=what)
                sessions.pop().close()
                for model, session in zip(models, sessions, strict=False):
                    what = "a model after another one was closed"
                    self.under_test.assert_accurate(model, session, model.feeds(), what=what)

    @proves("independent sessions")
    def test_another_model_in_the_same_file(self) -> None:
        path = self.under_test.folder / "replaced" / "model.onnx"
        for seed in range(2):
            model = dense(seed=seed)
            lowered = self.under_test.lowered(model)
            shutil.rmtree(path.parent, ignore_errors=True)
            shutil.copytree(lowered.path.parent, path.parent)  # its weights may be in files beside it
            (path.parent / lowered.path.name).rename(path)
            # For the types of the outputs.
            with (
                self.under_test.open(model) as session,
                self.under_test.compiled(replace(lowered, path=path)) as executable,
            ):
                outputs = dict(zip(["y"], executable.run(["y"], model.feeds()), strict=True))
                what = "a model in a file that held another one"
                self.under_test.assert_accurate(model, session, model.feeds(), outputs, what=what)

    @proves("independent sessions")
    def test_several_sessions_of_one_model(self) -> None:
        model = self.under_test.encoder()
        whole: dict[str, Any] = {"padding": "keep"}
        requests = [whole, {**whole, "outputs": ["pooler_output"]}, {"padding": "auto"}, whole]
        if self.under_test.capabilities.sets_threads:
            requests += [{**whole, "threads": 2}]
        with ExitStack() as stack:
            sessions = [stack.enter_context(self.under_test.open(model, **request)) for request in requests]
            sessions[-1].close()
            for seed in range(2):
                for session in sessions[:-1]:
                    what = "one of several sessions of a model"
                    self.under_test.assert_accurate(model, session, model.feeds(seed), what=what)

    @proves("independent sessions")
    def test_precisions_side_by_side(self, precision: str) -> None:
        """A session in another precision, opened later, changes nothing for the first."""
        model, first = self.under_test.encoder("bert-2x128"), self.under_test.capabilities.precisions[0]
        with self.under_test.open(model, padding="keep") as session:
            with self.under_test.open(model, precision=precision, padding="keep") as second:
                for opened, requested in ((second, precision), (session, first), (second, precision)):
                    what = f"{requested} beside a session in another precision"
                    self.under_test.assert_accurate(model, opened, model.feeds(), precision=requested, what=what)
            self.under_test.assert_accurate(
                model, session, model.feeds(), what=f"{first} after a session in {precision}"
            )

    @proves("independent sessions")
    def test_session_after_a_model_that_was_refused(self) -> None:
        with pytest.raises(IsorunError):
            self.under_test.open(parsed(UNKNOWN_OPERATOR)).close()
        for model in (dense(), self.under_test.encoder()):
            with self.under_test.open(model) as session:
                self.under_test.assert_accurate(model, session, model.feeds(), what="a session after a refused model")

    @proves("independent threads")
    def test_opened_run_and_closed_on_different_threads(self) -> None:
        for model in (dense(), self.under_test.encoder()):
            session: Session = _in_a_new_thread(partial(self.under_test.open, model))
            outputs = _in_a_new_thread(partial(session.run, None, model.feeds()))
            self.under_test.assert_accurate(model, session, model.feeds(), named(session, outputs))
            _in_a_new_thread(session.close)

    @proves("application settings")
    def test_file_in_a_folder_of_any_name(self) -> None:
        folder = self.under_test.folder / "mit Leerzeichen, ümläut & 文字"
        model = four_outputs(dynamic=False)
        path = folder / "100% 'model'.onnx"
        folder.mkdir(exist_ok=True)
        model.write(path)
        with Session(
            path,
            self.under_test.name,
            environment=self.under_test.environment,
            options=self.under_test.options,
            cache_dir=self.under_test.folder / "cache",
        ) as session:
            self.under_test.assert_accurate(model, session, model.feeds())

    @proves("application settings")
    @pytest.mark.parametrize(
        "setting", ["NumPy's errors raise", "warnings are errors", "the working directory changes"]
    )
    def test_settings_of_the_application(self, setting: str) -> None:
        """Of a run, and of a model that is compiled, by code that has done so before."""
        bert = self.under_test.encoder()
        for model, feeds in ((dense(), dense().feeds()), (bert, bert.feeds(mask="masked-row"))):
            lowered = self.under_test.lowered(model)
            with self.under_test.open(model) as session, ExitStack() as stack:
                if setting == "NumPy's errors raise":
                    stack.enter_context(np.errstate(all="raise"))
                elif setting == "warnings are errors":
                    stack.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("error")
                else:
                    stack.enter_context(chdir(self.under_test.folder))
                what = f"where {setting}"
                outputs = _run(session, feeds, what)
                try:
                    stack.enter_context(self.under_test.compiled(lowered))
                except (IsorunError, ArithmeticError, Warning) as error:
                    raise AssertionError(f"{what}, compile() raised {type(error).__name__}: {error}") from error
            self.under_test.assert_accurate(model, session, feeds, outputs, what=what)

    @proves("application settings")
    def test_run_inside_an_event_loop(self) -> None:
        """As in a notebook, or in a handler of a server."""
        model = self.under_test.encoder()

        async def use() -> dict[str, object]:
            with self.under_test.open(model) as session:
                return _run(session, model.feeds(), "inside an event loop")

        outputs = asyncio.run(use())
        with self.under_test.open(model) as session:
            self.under_test.assert_accurate(model, session, model.feeds(), outputs, what="a run inside an event loop")

    @proves("application settings")
    def test_garbage_collection_and_freed_feeds(self) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            outputs = named(session, session.run(None, model.feeds()))
            gc.collect()
            self._fill_freed_memory()
            self.under_test.assert_accurate(model, session, model.feeds(), outputs, what="outputs after a collection")
            self.under_test.assert_accurate(model, session, model.feeds(1))

    @proves("forks")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    def test_fork_harms_neither_process(self) -> None:
        """The parent's session still computes. The child, which inherited it, opens another, and exits."""
        if devices.kinds(self.under_test.config.device) != ("cpu",):
            pytest.skip("does not apply: a process with a GPU in use cannot be forked")
        for model in (dense(), self.under_test.encoder()):
            with self.under_test.open(model) as session:
                self.under_test.assert_accurate(model, session, model.feeds())
                pid = os.fork()
                if pid == 0:
                    try:
                        with suppress(IsorunError):  # a session with a worker computes, any other refuses
                            session.run(None, model.feeds())
                        session.close()
                        gc.collect()
                        with self.under_test.open(model) as another:
                            self.under_test.assert_accurate(model, another, model.feeds())
                        os._exit(0)
                    finally:
                        os._exit(1)
                code = _exit_code(pid)
                assert code == 0, f"a forked process, which opened a session of its own, ended with {code}"
                self.under_test.assert_accurate(model, session, model.feeds(1), what="a session after a fork")

    def _fill_freed_memory(self) -> None:
        sizes = [2**power for power in range(6, 18)]
        for _ in range(20):
            [np.full(size, np.nan, np.float32) for size in sizes]


def _in_a_new_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _run(session: Session, feeds: dict[str, np.ndarray], what: str) -> dict[str, object]:
    try:
        return named(session, session.run(None, feeds))
    except (IsorunError, ArithmeticError, Warning) as error:
        raise AssertionError(f"{what}, a run raised {type(error).__name__}: {error}") from error


def _exit_code(pid: int) -> int | str:
    deadline = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "none: it hangs"
