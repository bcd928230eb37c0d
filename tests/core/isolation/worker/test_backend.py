"""Sessions in an environment return the same results and raise the same errors as in this process."""

import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import isorun
import programs
import tiny
from isolation import BAD, WELL, run, worker_pid
from isorun.errors import (
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    EnvironmentBroken,
    InvalidFeeds,
    UnsupportedModel,
)
from isorun.isolation import environments
from isorun.isolation.worker import wire
from isorun.isolation.worker.backend import Worker
from isorun.isolation.worker.channel import Channel
from isorun.isolation.worker.failures import RemoteError
from isorun.types import CompileConfig, LoweredModel, ModelInfo, TensorSpec

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_same_results_as_in_this_process(bert, fakes, backend):
    with isorun.Session(bert, backend) as here, isorun.Session(bert, backend, environment=fakes) as there:
        for kind in tiny.MASKS:
            feeds = tiny.feeds(5, 16, kind=kind)
            for one, other in zip(here.run(None, feeds), there.run(None, feeds), strict=True):
                np.testing.assert_array_equal(one, other)
        assert here.provenance.operators == there.provenance.operators
        assert here.provenance.versions == there.provenance.versions


def test_results_outlive_the_session(odd):
    session = odd("alias")  # the backend returns its input array
    arrays = [np.full(20_000, value, np.float32) for value in range(30)]
    kept = [run(session, array) for array in arrays]
    for result in kept[:3]:
        result += 100
    del kept[3:6]
    kept += [run(session, array) for array in arrays]
    session.close()
    del session
    gc.collect()
    expected = [*(value + 100 for value in range(3)), *range(6, 30), *range(30)]
    for result, value in zip(kept, expected, strict=True):
        assert (result == value).all()


def test_feeds_and_results_grow_and_shrink(odd):
    session = odd()
    for size in (1, 70_000, 3, 5_000_000, 0, 200):
        array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        np.testing.assert_array_equal(run(session, array), array)


def test_feeds_that_are_not_contiguous(odd):
    session = odd()
    for array in (np.arange(10, dtype=np.float32)[::-2], np.broadcast_to(np.float32(3), 7)):
        np.testing.assert_array_equal(run(session, array), array)


def test_outputs_other_than_tensors(fakes, model, tmp_path):
    """Without a session, which would reject what the model does not declare."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    x, y = TensorSpec("x", "tensor(float)", ("N",)), TensorSpec("y", "tensor(float)", ("N",))
    lowered = LoweredModel(path, "onnx", "0" * 64, ModelInfo((x,), (y,), 17), cached=False)
    worker = Worker(environments.get(fakes))

    def returned(do):
        config = CompileConfig(options={"do": do, "in": "run"})
        (result,) = worker.get("odd").compile(lowered, config).run(["y"], {"x": BAD})
        return result

    try:
        np.testing.assert_array_equal(returned("strings"), np.array([["a", "ü\ud800"], ["", "\0"]], dtype=object))
        numbers, empty, (nothing, mapped) = returned("sequence")
        np.testing.assert_array_equal(numbers, [0, 1, 2])
        assert (empty.dtype, empty.shape, nothing, mapped[1]) == (np.float16, (0, 2), None, 2.5)
        assert np.isnan(mapped[7])
        assert type(returned("sequence-as-tuple")) is tuple, "a session rejects it"
        scalar = returned("scalar")
        assert (scalar.dtype, scalar.shape, scalar) == (np.float64, (), 2.5)
        np.testing.assert_array_equal(returned("transposed"), [[0, 3], [1, 4], [2, 5]])
    finally:
        worker.close()


def test_output_of_a_type_that_onnx_does_not_have(odd):
    with pytest.raises(BackendFailed, match=r"odd: run\(\) must return.*object.*isorun_isolation"):
        run(odd("object"), BAD)


def test_output_to_stdout_does_not_disturb_replies(odd):
    session = odd("print")
    for _ in range(5):
        np.testing.assert_array_equal(run(session, BAD), BAD)


def test_requests_run_concurrently(odd):
    session = odd("nap")
    start = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda value: run(session, BAD - value), range(8)))
    assert time.monotonic() - start < 8 * 0.3
    for value, result in enumerate(results):
        np.testing.assert_array_equal(result, BAD - value)


def test_options_reach_the_worker(odd, fakes, model):
    asked = {"options": {"also": {"a": [1, Path("b")]}}, "threads": 3, "precision": "fp64", "environment": fakes}
    with isorun.Session(model, "odd", **asked) as session:
        provenance = session.provenance
        assert (provenance.threads, provenance.precision) == (3, "fp64")
        assert provenance.details["threads"] == 3
        assert provenance.details["also"] == {"a": [1, "b"]}
        assert provenance.details["pid"] != os.getpid()
        assert provenance.environment == {
            "name": fakes,
            "python": environments.get(fakes).version,
            "numpy": np.__version__,
        }
        assert f"environment  {fakes}: Python" in str(provenance)


def test_option_that_cannot_be_sent(odd):
    with pytest.raises(BackendUnavailable, match=r"option 'also'.*object"):
        odd(also=[object()])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["run", "compile"])
@pytest.mark.parametrize(
    ("do", "kind", "message", "cause"),
    [
        ("bug", BackendFailed, "raised ValueError: a bug in a plugin", "ValueError: a bug in a plugin"),
        ("odd-bug", BackendFailed, "raised KeyError: 'missing'", "KeyError: 'missing'"),
        ("sys-exit", BackendFailed, "raised SystemExit: 3", "SystemExit: 3"),
        ("vendor", BackendFailed, "odd failed while running: the vendor's own words", "ConnectionError: the vendor's"),
        ("unsupported", UnsupportedModel, "odd lacks Foo", None),
        ("unavailable", BackendUnavailable, "Backend 'odd' cannot be used: the device is on fire. Put it", None),
        ("feeds", InvalidFeeds, "Input 'x' is not to its taste", None),
    ],
)
def test_same_errors_as_in_this_process(odd, do, kind, message, cause, where):
    with pytest.raises(kind) as caught:
        run(odd(do, where), BAD)
    assert type(caught.value) is kind
    assert message in str(caught.value)
    if kind is UnsupportedModel:
        assert caught.value.operators == ("Foo", "ai.bar.Baz")
    if kind is BackendUnavailable:
        assert (caught.value.reason, caught.value.remedy) == ("the device is on fire", "Put it out.")
    if cause is not None:
        remote = caught.value.__cause__
        assert isinstance(remote, RemoteError)
        assert str(remote).startswith(cause)
        assert "isorun_isolation.py" in remote.traceback


@pytest.mark.parametrize("do", ["bug", "odd-bug", "scalar", "tuple"])
def test_errors_name_the_authors_of_the_plugin(odd, do):
    with pytest.raises(BackendFailed, match=r"odd: run\(\) (raised|must return) .*authors of isorun_isolation$"):
        run(odd(do), BAD)


def test_plugin_that_changes_its_arguments(odd):
    session = odd("pop")
    for _ in range(3):
        np.testing.assert_array_equal(run(session), WELL)


def test_session_is_usable_after_an_error(odd):
    session = odd("bug")
    with pytest.raises(BackendFailed, match="a bug"):
        run(session, BAD)
    np.testing.assert_array_equal(run(session), WELL)


def test_unknown_backend(bert, fakes):
    with pytest.raises(BackendNotFound, match=rf"'od' .* in the environment '{fakes}'; did you mean 'odd'"):
        isorun.Session(bert, "od", environment=fakes)


def test_runtime_that_is_not_installed(bert, fakes):
    with pytest.raises(BackendUnavailable, match="'no_such_runtime' is not installed") as caught:
        isorun.Session(bert, "absent", environment=fakes)
    create = f"isorun env create {fakes} --python {OWN} --install 'no-such-runtime>=3'"
    assert f"isorun env remove {fakes} && {create}" in caught.value.remedy


def test_first_available_of_several(bert, fakes):
    with isorun.Session(bert, ["absent", "ort-cpu"], environment=fakes) as session:
        assert session.provenance.backend == "ort-cpu"
        assert [name for name, _ in session.provenance.skipped] == ["absent"]
    with pytest.raises(BackendNotFound, match="'no-such' is installed in the environment"):
        isorun.Session(bert, ["ort-cpu", "no-such"], environment=fakes)


def test_interpreter_that_is_missing(bert, tmp_path, monkeypatch):
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "gone" / "bin").mkdir(parents=True)
    (tmp_path / "gone" / "bin" / "python").symlink_to("/nowhere/python3.11")
    (tmp_path / "gone" / "environment.json").write_text('{"python": "3.11.7", "install": ["a==1"]}')
    with pytest.raises(EnvironmentBroken, match=r"/nowhere/python3\.11") as caught:
        isorun.Session(bert, "ort-cpu", environment="gone")
    assert "isorun env remove gone && isorun env create gone --python 3.11 --install a==1" in str(caught.value)


def test_interpreter_that_cannot_be_started(bert, tmp_path, monkeypatch):
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path))
    programs.write(tmp_path / "odd" / "bin" / "python", "no program")
    (tmp_path / "odd" / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    with pytest.raises(EnvironmentBroken, match="Exec format error"):
        isorun.Session(bert, "ort-cpu", environment="odd")


def test_worker_outlives_the_thread_that_opened_the_session(odd):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(odd()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    pid = opened[0].provenance.details["pid"]
    np.testing.assert_array_equal(run(opened[0]), WELL)
    assert worker_pid(opened[0]) == pid


@pytest.mark.parametrize("kind", [wire.MAP, wire.RUN])
def test_interrupted_after_an_answer_and_before_its_use(odd, monkeypatch, kind):
    exchange, interrupted = Channel._exchange, []

    def interrupting(self, sent, *arguments):
        reply = exchange(self, sent, *arguments)
        if sent == kind and not interrupted:
            interrupted.append(sent)
            raise KeyboardInterrupt
        return reply

    session = odd()
    monkeypatch.setattr(Channel, "_exchange", interrupting)
    with pytest.raises(KeyboardInterrupt):
        run(session, np.arange(3000, dtype=np.float32))
    for size in (4, 3000, 5, 20000):
        values = np.arange(size, dtype=np.float32) + size
        np.testing.assert_array_equal(run(session, values), values)
