"""The isolated environment with DeepSparse, which cannot share that of the tests, and a model to prune."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

import tiny
from isorun.errors import EnvironmentNotFound
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker

VARIABLE = "ISORUN_DEEPSPARSE_ENVIRONMENT"


@pytest.fixture(scope="session")
def environment() -> str:
    """The name of the environment; skips without one, fails if DeepSparse is unavailable in it."""
    name = os.environ.get(VARIABLE, "deepsparse")
    try:
        isolated = environments.get(name)
    except EnvironmentNotFound as error:
        pytest.skip(f"{error} (see README.md; ${VARIABLE} may name another)")
    with closing(Worker(isolated)) as worker:
        availability = worker.get("deepsparse").availability()
    assert availability.ok, availability.reason
    return name


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT in the fused form: an ONNX file. Read it only."""
    from isorun.models import checkpoint

    folder = tmp_path_factory.mktemp("models")
    checkpoint.build(tiny.write_checkpoint(folder / "tiny"), folder / "bert.onnx")
    return folder / "bert.onnx"
