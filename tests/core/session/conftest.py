"""Sessions on every backend."""

import pytest

import backends
import isolation
import isorun
import small_bert
from isorun.isolation import environments

ISOLATED = "ort-cpu in an environment"


@pytest.fixture(scope="module", params=[*backends.BACKENDS, ISOLATED])
def session(request, bert):
    backend, environment = request.param, None
    if backend == ISOLATED:
        backend, environment = "ort-cpu", isolation.own_environment(environments.root(), "sessions")
    threads = backends.threads(backend, 1)
    with isorun.Session(bert, backend=backend, threads=threads, environment=environment) as opened:
        yield opened


@pytest.fixture(params=backends.BACKENDS)
def any_backend(request):
    return request.param


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small BERT on one thread, for requests of one row."""
    folder = tmp_path_factory.mktemp("encoder")
    model = small_bert.write(folder / "model.onnx")
    with isorun.Session(model, "ort-cpu", threads=1, cache_dir=folder / "cache") as opened:
        yield opened
