"""The way from a session to a plugin, and what plugins do wrong on it."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import numpy as np
import pytest

import backends
import counting
import isorun
import tiny
from bindings import bound
from isorun.errors import BackendFailed, BackendUnavailable, InvalidArgument, InvalidFeeds, UnsupportedModel
from isorun.models.feeds import FeedChecker
from isorun.plugin import Capabilities, registry
from isorun.types import ModelInfo, TensorSpec
from isorun_conformance import fakes, sample_models
from isorun_conformance.sample_models import parsed

WRONG_RESULTS = {
    "a tuple": lambda results: tuple(results),
    "one output": lambda results: results[:1],
    "None": lambda results: None,
}


class Faulty(fakes.Right):
    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True, options={"at": "where", "result": "what"})

    def compile(self, model, config):
        fault(config.options.get("at") == "compile")
        fault(config.options.get("at") == "packed" and "NonZero" in str(model.path.read_bytes()))
        return _Faulty(model, config)


class _Faulty(fakes.RightExecutable):
    def run(self, output_names, feeds):
        assert isinstance(output_names, list), "concrete names"
        fault(self._options.get("at") == "run")
        results = super().run(output_names, feeds)
        return WRONG_RESULTS.get(self._options.get("result"), lambda unchanged: unchanged)(results)

    def report(self):
        fault(self._options.get("at") == "report")
        return super().report()

    def close(self):
        super().close()
        fault(self._options.get("at") == "close")


class Spoiled(fakes.Right):
    """Wrong after a failed run, as OpenVINO 2026.4; compiled again, right."""

    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True, thread_safe=True)
    compiled = 0

    def compile(self, model, config):
        type(self).compiled += 1
        return _Spoiled(model, config)


class _Spoiled(fakes.RightExecutable):
    spoiled = False

    def run(self, output_names, feeds):
        try:
            results = super().run(output_names, feeds)
        except BackendFailed:
            self.spoiled = True
            raise
        return [result + 1 for result in results] if self.spoiled else results


class NoDataDependentShapes(fakes.Right):
    capabilities = Capabilities(
        dialects=("primitive",), dynamic_shapes=True, data_dependent_shapes=False, fixed_threads=3
    )


def fault(occurs: bool) -> None:
    if occurs:
        raise KeyError("a bug")


class Plain(fakes.Right):
    """Its executables have no optional ability, and note who calls them."""

    capabilities = replace(fakes.Right.capabilities, thread_safe=True, usable_after_failure=True, checks_indices=True)
    callers: ClassVar[list[list[CodeType]]] = []

    def compile(self, model, config):
        return _Plain(model, config)


class _Plain(fakes.RightExecutable):
    def run(self, output_names, feeds):
        frame, codes = sys._getframe(1), []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        Plain.callers.append(codes)
        return super().run(output_names, feeds)


class Serialized(Plain):
    capabilities = replace(Plain.capabilities, usable_after_failure=False)


@pytest.fixture(autouse=True)
def faulty() -> Iterator[None]:
    with backends.registered(
        faulty=Faulty, simple=NoDataDependentShapes, spoiled=Spoiled, plain=Plain, serialized=Serialized
    ):
        yield


def use(bert: Any, **options: Any) -> list[Any]:
    with isorun.Session(bert, "faulty", options=options) as session:
        assert session.provenance.backend == "faulty"
        return session.run(None, tiny.feeds())


@pytest.mark.parametrize("at", ["compile", "run", "report", "close"])
def test_exceptions_are_wrapped(bert, at):
    with pytest.raises(BackendFailed, match=rf"faulty: {at}\(\) raised KeyError: 'a bug'. Report it to") as caught:
        use(bert, at=at)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("result", WRONG_RESULTS)
def test_results_are_checked(bert, result):
    with pytest.raises(BackendFailed, match=r"faulty: run\(\) must return a list of 2 outputs, got"):
        use(bert, result=result)


WRONG_ARRAYS = {
    "a list": (lambda array: array.tolist(), "a numpy.ndarray, got list"),
    "float64": (lambda array: array.astype(np.float64), "an array of float32, as the model declares, got float64"),
    "another rank": (lambda array: array[0], "an array of 3 dimensions"),
    "a row more": (lambda array: np.concatenate([array, array[:1]]), "an array of 3 rows"),
    "another size": (lambda array: array[..., 1:], "an array of size .* at dimension 2"),
}


@pytest.mark.parametrize("change", WRONG_ARRAYS)
@pytest.mark.parametrize("bound", [False, True])
def test_arrays_are_checked(bert, change, bound):
    wrong, message = WRONG_ARRAYS[change]

    class Wrong(fakes.Right):
        def compile(self, model, config):
            executable = super().compile(model, config)
            right = executable.run
            executable.run = lambda names, feeds: [wrong(array) for array in right(names, feeds)]
            return executable

    with backends.registered(wrong=Wrong), isorun.Session(bert, "wrong", outputs=["last_hidden_state"]) as session:
        feeds = tiny.feeds(batch=3)
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("last_hidden_state")
        for _ in range(2):
            with pytest.raises(BackendFailed, match=f"'last_hidden_state' {message}"):
                session.run_with_iobinding(binding) if bound else session.run(None, feeds)


SUM = np.arange(3, dtype=np.float32)
GOOD, BAD = {"x": SUM, "y": SUM}, {"x": SUM, "y": SUM[:2]}


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
def test_a_list_for_an_optional_array_has_its_numbers(backend: str) -> None:
    model = parsed("""<ir_version: 8, opset_import: ["" : 18]>
        g (optional(float[n]) x) => (optional(float[n]) y) { y = Identity (x) }""")
    with isorun.Session(model, backend) as session:
        for value in (SUM, SUM.tolist()):
            np.testing.assert_array_equal(session.run(None, {"x": value})[0], SUM)
        with pytest.raises(isorun.InvalidFeeds, match="'x' must have 1 dimension"):
            session.run(None, {"x": [SUM]})


def test_a_failed_run_affects_no_later_one():
    with isorun.Session(parsed(sample_models.SUM), "spoiled") as session:
        binding = session.io_binding()
        for name, array in GOOD.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("z")
        for failures in range(1, 4):
            with pytest.raises(BackendFailed):
                session.run(None, BAD)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * SUM)
            np.testing.assert_array_equal(session.run(None, GOOD)[0], 2 * SUM)
            assert session.provenance.details["recompiled"]["after_failures"] == failures
            assert session.metrics().recompiled == failures


def test_failed_runs_affect_none_on_other_threads():
    with isorun.Session(parsed(sample_models.SUM), "spoiled") as session, ThreadPoolExecutor(4) as pool:
        before = Spoiled.compiled

        def work(number):
            if number % 5 == 0:
                with pytest.raises(BackendFailed):
                    session.run(None, BAD)
            return session.run(None, GOOD)[0]

        for result in pool.map(work, range(100)):
            np.testing.assert_array_equal(result, 2 * SUM)
        assert 1 <= Spoiled.compiled - before <= 20  # one for each failure, whoever waits for it


def test_a_backend_that_is_usable_after_failures_is_not_compiled_again():
    with isorun.Session(parsed(sample_models.SUM), "ort-cpu") as session:
        with pytest.raises(BackendFailed):
            session.run(None, BAD)
        np.testing.assert_array_equal(session.run(None, GOOD)[0], 2 * SUM)
        assert session.metrics().recompiled == 0
        assert "recompiled" not in session.provenance.details


def test_a_rejected_request_compiles_nothing_again(bert):
    with isorun.Session(bert, "spoiled") as session:
        before = Spoiled.compiled
        with pytest.raises(InvalidFeeds):
            session.run(None, {})
        session.run(None, tiny.feeds())
        assert Spoiled.compiled == before


def test_a_packed_graph_that_does_not_compile_is_replaced_once(bert, caplog):
    feeds = tiny.feeds(batch=4, length=32)
    feeds["attention_mask"][:, 3:] = 0
    with (
        isorun.Session(bert, "faulty", options={"at": "packed"}) as session,
        isorun.Session(bert, "reference") as reference,
    ):
        for _ in range(2):
            for output, expected in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
                np.testing.assert_allclose(output, expected, atol=1e-5)
        assert "KeyError: 'a bug'" in session.provenance.details["padding"]["removed"]
    (record,) = [logged for logged in caplog.records if "packed graph" in logged.getMessage()]
    assert record.levelname == "WARNING"


def test_without_data_dependent_shapes_padding_is_kept(bert):
    with isorun.Session(bert, "simple") as session:
        assert "data-dependent shapes" in session.provenance.details["padding"]["removed"]
        assert session.provenance.threads == 3
    with pytest.raises(BackendUnavailable, match="data-dependent shapes"):
        isorun.Session(bert, "simple", padding="remove")


def test_fixed_threads_may_be_requested_and_no_other_number(bert):
    isorun.Session(bert, "simple", threads=3).close()
    with pytest.raises(BackendUnavailable, match=r"`threads` \(got 2\): .*fixed at 3"):
        isorun.Session(bert, "simple", threads=2)


@pytest.mark.parametrize("name", ["ort-cpu", "faulty", "auto", "a:b"])
def test_register_rejects_a_name(name):
    with pytest.raises(InvalidArgument, match=name):
        registry.register(name, fakes.Right)


def test_register_rejects_an_invalid_backend():
    class Odd(fakes.Right):
        capabilities = Capabilities(dialects=("latin",))

    with pytest.raises(InvalidArgument, match="unknown dialect 'latin'"):
        registry.register("odd", Odd)
    assert "odd" not in registry.names()


def test_error_of_isorun_passes_through(bert, monkeypatch):
    def refuse(*_: object) -> None:
        raise UnsupportedModel("it lacks Erf", ["Erf"])

    monkeypatch.setattr(Faulty, "compile", refuse)
    with pytest.raises(UnsupportedModel, match="it lacks Erf"):
        use(bert)


SHAPED = ModelInfo(
    (TensorSpec("x", "tensor(float)", ("n",)),), (TensorSpec("y", "tensor(float)", ("n",)),), 17, masks=("x",)
)


REAL = np.ones(3, np.float32)


def ones(feeds):
    return [np.ones_like(feeds["x"])]


@pytest.mark.parametrize(("backend", "files"), [("plain", []), ("serialized", ["compiled_graph.py"])])
def test_a_call_reaches_the_plugin_directly(bert, backend, files):
    with isorun.Session(bert, backend) as session:
        session.run(None, tiny.feeds())
        session.run_with_iobinding(bound(session, tiny.feeds(), "pooler_output"))
        direct, through_binding = Plain.callers[-2:]
    between = direct[: [code.co_name for code in direct].index("test_a_call_reaches_the_plugin_directly")]
    assert [Path(code.co_filename).name for code in between] == [*files, "compiled_model.py", "session.py"]
    assert "run_with_iobinding" in [code.co_name for code in through_binding[:8]]


def test_feeds_are_validated_once_whichever_way_they_come(bert, monkeypatch):
    validated, check = [], FeedChecker.check_call
    with isorun.Session(bert, "plain") as session:
        session.warmup([(1, 8)], measure=False)
        binding = bound(session, tiny.feeds(), "pooler_output")
        monkeypatch.setattr(FeedChecker, "check_call", lambda *arguments: validated.append(1) or check(*arguments))
        for call in (
            lambda: session.run(None, tiny.feeds()),
            lambda: session.run_with_iobinding(binding),
            lambda: session.submit(None, tiny.feeds()).result(20),
            lambda: session.device_times(tiny.feeds()),
        ):
            validated.clear()
            call()
            assert len(validated) == 1


def test_a_forked_process_waits_for_no_thread_of_its_parent():
    model, backend, _ = counting.model(SHAPED, ones)
    inside, gate = threading.Event(), threading.Event()
    backend.results = lambda feeds: inside.set() or (gate.wait(20) and ones(feeds))
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(model.run, ["y"], {"x": REAL})
        assert inside.wait(20)
        model.unlock_after_fork()
        backend.results = ones
        model.run(["y"], {"x": REAL})
        assert not stuck.done()
        gate.set()
        stuck.result(20)


def test_close_releases_a_graph_that_is_being_compiled():
    model, backend, _ = counting.model(SHAPED, ones)
    compiling, gate, compile_ = threading.Event(), threading.Event(), backend.compile

    def slow(*arguments):
        compiling.set()
        gate.wait(20)
        return compile_(*arguments)

    backend.compile = slow
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(model.run, ["y"], {"x": 2 * REAL})
        assert compiling.wait(20)
        close = pool.submit(model.close)
        while not model.closed:
            time.sleep(0.001)
        gate.set()
        close.result(20)
        with pytest.raises(isorun.IsorunError, match="This session is closed"):
            run.result(20)
    assert backend.closed == backend.compiled == {"main": 1, "as given": 1}
    with pytest.raises(isorun.IsorunError, match="This session is closed"):
        model.run(["y"], {"x": REAL})
