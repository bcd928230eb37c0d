"""Sessions on every backend."""

from __future__ import annotations

import pytest

import backends
import isorun


@pytest.fixture(scope="module", params=backends.BACKENDS)
def session(request, bert):
    with isorun.Session(bert, backend=request.param, threads=backends.threads(request.param, 1)) as opened:
        yield opened


@pytest.fixture(params=backends.BACKENDS)
def any_backend(request):
    return request.param
