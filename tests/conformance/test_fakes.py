import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

import isorun
from isorun.plugin import registry
from isorun_conformance import fakes
from isorun_conformance.sample_models import dense


@pytest.fixture
def model(tmp_path) -> Iterator[str]:
    with fakes.installed():
        yield str(dense().path(tmp_path))


X = dense().feeds()


def right(model) -> np.ndarray:
    with isorun.Session(model, "reference") as session:
        return session.run(None, X)[0]


def test_are_registered_inside_the_context_only():
    before = os.environ.get("PYTHONPATH"), list(sys.path)
    with fakes.installed():
        assert set(fakes.NAMES) <= set(registry.names())
        script = "import json; from isorun.plugin import registry; print(json.dumps(registry.names()))"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert set(fakes.NAMES) <= set(json.loads(found.stdout))
        for name in fakes.NAMES:
            assert registry.get(name).availability().ok
    assert not set(fakes.NAMES) & set(registry.names())
    assert (os.environ.get("PYTHONPATH"), list(sys.path)) == before


def test_echo_returns_its_feed(model):
    with isorun.Session(model, "fake-echo") as session:
        (y,) = session.run(None, X)
        np.testing.assert_array_equal(y, X["x"])
        assert not np.shares_memory(y, X["x"])


def test_slow_is_right_and_late(model):
    with isorun.Session(model, "fake-slow", options={"seconds": 0.2}) as session:
        start = time.monotonic()
        (y,) = session.run(None, X)
        assert time.monotonic() - start >= 0.2
        np.testing.assert_array_equal(y, right(model))


def use(model: str, name: str, **options: object) -> tuple[str, Exception | None]:
    """Open, run and close; the step that was reached, and the error there."""
    step = "compile"
    try:
        with isorun.Session(model, name, options=options) as session:
            step = "run"
            session.run(None, X)
            step = "close"
    except (isorun.IsorunError, RuntimeError) as error:
        return step, error
    return "the end", None


@pytest.mark.parametrize("when", ["compile", "run", "close"])
def test_failing_raises_at_the_requested_moment(model, when):
    for wrapped in (True, False):
        step, error = use(model, "fake-failing", when=when, wrapped=wrapped)
        assert step == when
        assert f"told to fail at {when}" in str(error)
        assert type(error) is isorun.BackendFailed
        assert type(error.__cause__) is RuntimeError


@pytest.mark.parametrize("about", ["device", "placement", "versions"])
def test_lying_computes_the_right_outputs(model, about):
    with isorun.Session(model, "fake-lying", options={"about": about}) as session:
        np.testing.assert_array_equal(session.run(None, X)[0], right(model))
    with pytest.raises(isorun.BackendUnavailable, match="bf16"):
        isorun.Session(model, "fake-lying", precision="bf16", options={"about": about})


def test_lying_about_precision_computes_in_fp32(model):
    with isorun.Session(model, "fake-lying", precision="bf16") as session:
        assert session.provenance.precision == "bf16"
        np.testing.assert_array_equal(session.run(None, X)[0], right(model))


@pytest.mark.parametrize(("name", "options"), [("fake-failing", {"when": "ran"}), ("fake-lying", {"about": "age"})])
def test_invalid_option_is_rejected(model, name, options):
    with pytest.raises(isorun.BackendUnavailable, match=r"when|about"):
        isorun.Session(model, name, options=options)
