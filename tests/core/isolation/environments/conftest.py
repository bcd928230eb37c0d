from pathlib import Path

import onnx
import pytest

import isolation
from isorun.isolation import environments
from onnx_text import graph


@pytest.fixture(scope="session")
def own() -> str:
    """An environment with the interpreter of the tests."""
    return isolation.own_environment(environments.root(), "own")


@pytest.fixture(scope="session")
def neg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model: y = -x."""
    path = tmp_path_factory.mktemp("neg") / "neg.onnx"
    onnx.save(graph("g (float[N] x) => (float[N] y) { y = Neg (x) }"), path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of environments for one test."""
    monkeypatch.setenv(environments.FOLDER_VARIABLE, str(tmp_path / "environments"))
    return tmp_path / "environments"
