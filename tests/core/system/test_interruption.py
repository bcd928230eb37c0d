"""What a handler of a signal raises is no failure of what it interrupts. The handler is called, without a signal."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

import isorun
import tiny
from isorun.graph.io.files import reading
from isorun.models.tokenizer_file import guarded
from isorun.plugin.backend import runtime_errors
from isorun.system.interruption import interrupts

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no signals of users")


class Late(Exception):
    """Of a handler, as for a time-out by ``signal.alarm``."""


def handler(*_: object) -> None:
    raise Late


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_tells_interruptions_from_failures() -> None:
    for error, expected in ((KeyboardInterrupt(), True), (Late(), False), (OSError(), False)):
        assert interrupts(error) is expected
    with pytest.raises(Late) as caught:
        handler()
    assert interrupts(caught.value)


@pytest.mark.parametrize(
    "converting",
    [
        lambda: runtime_errors("it failed while running"),
        lambda: runtime_errors("it cannot load", lambda _: isorun.UnsupportedModel("it lacks Sin")),
        lambda: reading("model.onnx"),
        lambda: guarded(Path("tokenizer.json")),
    ],
)
def test_a_conversion_leaves_it_alone(converting: Callable[[], AbstractContextManager[None]]) -> None:
    with pytest.raises(Late), converting():
        handler()


class Interrupted:
    def __array__(self, *_: object, **__: object) -> np.ndarray:
        handler()
        return np.zeros(4)


def test_submit_raises_it(bert: Path) -> None:
    feeds = tiny.feeds()
    with isorun.Session(bert, "ort-cpu") as session:
        with pytest.raises(Late):
            session.submit(None, {**feeds, "input_ids": [Interrupted()]})  # type: ignore[dict-item]
        assert len(session.submit(None, feeds).result()) == 2
