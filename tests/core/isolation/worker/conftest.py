"""Environments with the interpreter of the tests, and a model of one operator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx.parser
import pytest

import isolation
import isorun
from isorun.isolation.environments import root

FAKES = Path(__file__).parent / "fakes"
MODEL = '<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
Odd = Callable[..., isorun.Session]


@pytest.fixture(scope="session")
def fakes() -> str:
    """An environment with a backend that misbehaves on request."""
    return isolation.own_environment(root(), "fakes", FAKES)


@pytest.fixture(scope="session")
def model() -> bytes:
    content: bytes = onnx.parser.parse_model(MODEL).SerializeToString()
    return content


@pytest.fixture
def odd(fakes: str, model: bytes) -> Iterator[Odd]:
    """Opens sessions on that backend and closes them."""
    opened = []

    def open_(do: str = "echo", where: str = "run", **options: object) -> isorun.Session:
        session = isorun.Session(model, "odd", environment=fakes, options={"do": do, "in": where, **options})
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.close()
