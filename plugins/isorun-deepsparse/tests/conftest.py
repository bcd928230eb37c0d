"""Where DeepSparse is for the tests: an environment of isorun's, since it shares none with isorun's own tests."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from isorun.errors import EnvironmentNotFound
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker

VARIABLE = "ISORUN_DEEPSPARSE_ENVIRONMENT"


@pytest.fixture(scope="session")
def environment() -> str:
    """The name of the environment. One that is there and in which DeepSparse cannot be used is an error."""
    name = os.environ.get(VARIABLE, "deepsparse")
    try:
        found = environments.get(name)
    except EnvironmentNotFound as error:
        pytest.skip(f"{error} (README.md says how to make it; ${VARIABLE} may name another)")
    with closing(Worker(found)) as worker:
        here = worker.get("deepsparse").availability()
    assert here.ok, here.reason
    return name
