"""What a plugin raises or returns reaches the caller as an error about that plugin, or not at all."""

import asyncio
import errno
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends
import isorun
import tiny
from isorun.errors import BackendFailed, DeadlineExceeded, IsorunError, QueueFull, SessionClosed
from isorun.plugin import Capabilities
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import Feeds
from isorun_conformance import fakes
from isorun_conformance.sample_models import parsed

CAPABILITIES = Capabilities(dialects=("primitive",), dynamic_shapes=True)
Change = Callable[[Sequence[str], Feeds, list[Any]], Any]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@contextmanager
def plugin(change: Change, at_compile: Callable[[], object] = lambda: None) -> Iterator[str]:
    """The name of a plugin whose results are right, but for what a function changes.

    Args:
        change: gets the names, the feeds and the right results, and returns what the plugin does.
        at_compile: called whenever a model is compiled.
    """

    class Changed(fakes.Right):
        capabilities = CAPABILITIES

        def compile(self, model: Any, config: Any) -> Any:
            at_compile()
            return ChangedExecutable(model, config)

    class ChangedExecutable(fakes.RightExecutable):
        def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
            requested = list(output_names)
            return change(output_names, feeds, super().run(requested, feeds))  # type: ignore[no-any-return]

    with backends.registered(changed=Changed):
        yield "changed"


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [Unreadable(), IsorunError("odd"), DeadlineExceeded("late"), QueueFull(3), SessionClosed("closed")]
)
def test_an_executable_is_compiled_again_after_any_exception_of_its_own(bert: Path, error: Exception) -> None:
    spoiled = []

    def change(_: Sequence[str], feeds: Feeds, results: list[Any]) -> list[Any]:
        if len(feeds["input_ids"]) == 5:
            spoiled.append(True)
            raise error
        return [result * 0 for result in results] if spoiled else results

    with plugin(change, at_compile=spoiled.clear) as name, isorun.Session(bert, name, padding="keep") as session:
        expected = session.run(None, tiny.feeds())
        with pytest.raises(BackendFailed, match=rf"changed: run\(\) raised {type(error).__name__}"):
            session.run(None, tiny.feeds(batch=5))
        for right, result in zip(expected, session.run(None, tiny.feeds()), strict=True):
            np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EIO, "broken"), "Report it to the authors of "),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "the system's limit"),
        (OSError(errno.EFBIG, "File too large"), "ulimit -f"),
        (MemoryError("800 MB"), "Free memory"),
    ],
)
def test_limits_of_the_process_are_no_failure_of_the_plugin(bert: Path, error: Exception, advice: str) -> None:
    with (
        plugin(raising(error)) as name,
        isorun.Session(bert, name) as session,
        pytest.raises(BackendFailed, match=advice),
    ):
        session.run(None, tiny.feeds())


@pytest.mark.parametrize(
    "error", [Unreadable(), SystemExit(3), asyncio.CancelledError(), IsorunError("odd"), SessionClosed("closed")]
)
def test_a_list_of_backends_goes_on_after_any_exception_of_one(bert: Path, error: BaseException) -> None:
    with (
        plugin(lambda *_: None, at_compile=raising(error)) as name,
        isorun.Session(bert, [name, "ort-cpu"]) as session,
    ):
        assert session.provenance.backend == "ort-cpu"
        (skipped,) = session.provenance.skipped
        assert type(error).__name__ in skipped[1]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), Unreadable(), DeadlineExceeded("late")])
def test_a_caller_on_another_thread_gets_the_error(bert: Path, error: BaseException) -> None:
    with plugin(raising(error)) as name, isorun.Session(bert, name) as session:
        with pytest.raises(BackendFailed, match=type(error).__name__):
            asyncio.run(session.arun(None, tiny.feeds()))
        messages: list[str] = []
        called = threading.Event()
        session.run_async(None, tiny.feeds(), lambda outputs, data, error: (messages.append(error), called.set()), None)
        assert called.wait(20)
        assert type(error).__name__ in messages[0]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no signals of users")
def test_what_a_handler_of_a_signal_raises_is_no_failure_of_the_plugin(bert: Path) -> None:
    def handler(*_: object) -> None:
        raise SystemExit(5)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with (
            plugin(lambda *_: handler()) as name,  # as the interpreter would, in the middle of a run
            isorun.Session(bert, name) as session,
            pytest.raises(SystemExit),
        ):
            session.run(None, tiny.feeds())
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_plugin_may_change_the_list_of_names(bert: Path) -> None:
    def change(names: Any, _: Feeds, results: list[Any]) -> list[Any]:
        names.sort(reverse=True)
        return results

    asked = ["last_hidden_state", "pooler_output"]
    with plugin(change) as name, isorun.Session(bert, name) as session:
        for names in (None, asked, None):
            outputs = session.run(names, tiny.feeds())
            assert [output.ndim for output in outputs] == [3, 2]
    assert asked == ["last_hidden_state", "pooler_output"]


def test_a_list_of_results_that_is_used_again_changes_no_earlier_result(bert: Path) -> None:
    kept: list[Any] = []

    def change(_: Sequence[str], __: Feeds, results: list[Any]) -> list[Any]:
        kept[:] = results
        return kept

    with plugin(change) as name, isorun.Session(bert, name) as session:
        first = session.run(None, tiny.feeds())
        before = [*first]
        session.run(None, tiny.feeds(batch=1))
        assert all(result is kept_before for result, kept_before in zip(first, before, strict=True))


WRONG: dict[str, Callable[[Any], Any]] = {
    "MaskedArray": np.ma.masked_array,
    "DeviceArray": lambda array: DeviceArray(64, array.shape, array.dtype),
    "tokens": lambda array: array[:, :-1].copy() if array.ndim == 3 else array,
    "C-contiguous": np.asfortranarray,
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("padding", ["keep", "auto"])
def test_wrong_results_are_refused(bert: Path, what: str, padding: str) -> None:
    with (
        plugin(lambda _, __, results: [WRONG[what](result) for result in results]) as name,
        isorun.Session(bert, name, padding=padding) as session,
        pytest.raises(BackendFailed, match=what),
    ):
        session.run(None, tiny.feeds())


@pytest.mark.parametrize("result", [np.ones(2, np.float32), np.array(["a", "b"])], ids=["numbers", "cut at a NUL"])
def test_strings_are_objects(result: np.ndarray) -> None:
    model = parsed('<ir_version: 8, opset_import: ["" : 17]> g (string[n] x) => (string[n] y) { y = Identity (x) }')
    with (
        plugin(lambda *_: [result]) as name,
        isorun.Session(model, name) as session,
        pytest.raises(BackendFailed, match="strings"),
    ):
        session.run(None, {"x": np.array(["a", "b"], object)})


ITEM = np.ones(2, np.float32)
NO_SEQUENCES = {
    "tuple": (ITEM,),
    "ndarray": np.ones((1, 2), np.float32),
    "NoneType": None,
    "generator": (item for item in [ITEM]),
    "float64": [ITEM, np.ones(2)],
    "list whose items": [[1.0, 2.0]],
}


@pytest.mark.parametrize("what", NO_SEQUENCES)
def test_a_sequence_is_a_list_of_arrays(what: str) -> None:
    model = parsed("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 2] x) => (seq(float[m, 2]) s) { s = SplitToSequence <axis: int = 0> (x) }""")
    feeds = {"x": np.ones((1, 2), np.float32)}
    results: list[Any] = [[ITEM], NO_SEQUENCES[what]]
    with plugin(lambda *_: [results.pop(0)]) as name, isorun.Session(model, name) as session:
        assert type(session.run(None, feeds)[0]) is list
        with pytest.raises(BackendFailed, match=what):
            session.run(None, feeds)


def test_an_optional_value_may_be_missing() -> None:
    model = parsed("""<ir_version: 8, opset_import: ["" : 18]>
        g (optional(float[n]) x) => (optional(float[n]) y) { y = Identity (x) }""")
    results: list[Any] = [None, ITEM, [ITEM]]
    with plugin(lambda *_: [results.pop(0)]) as name, isorun.Session(model, name) as session:
        assert session.run(None, {"x": ITEM}) == [None]
        assert session.run(None, {"x": ITEM})[0] is ITEM
        with pytest.raises(BackendFailed, match="list"):
            session.run(None, {"x": ITEM})


def test_results_that_are_read_only_have_zeros_at_padding(bert: Path) -> None:
    def change(_: Sequence[str], __: Feeds, results: list[Any]) -> list[Any]:
        for result in results:
            result.setflags(write=False)
        return results

    feeds = tiny.feeds()
    feeds["attention_mask"][0, -1] = 0  # too little padding to remove
    with plugin(change) as name, isorun.Session(bert, name) as session, isorun.Session(bert, "ort-cpu") as right:
        (hidden,) = session.run(["last_hidden_state"], feeds)
        np.testing.assert_allclose(hidden, right.run(["last_hidden_state"], feeds)[0], rtol=1e-4, atol=1e-5)
