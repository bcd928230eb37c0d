"""What sets ort-cpu apart; what it shares with every backend is in tests/core/test_session.py."""

from __future__ import annotations

import json

import onnxruntime
import pytest

import isorun
import tiny
from onnx_text import graph


@pytest.fixture(scope="module")
def session(bert):
    with isorun.Session(bert, backend="ort-cpu", padding="keep") as opened:
        yield opened


def test_provenance_is_onnx_runtimes_own_assignment(session):
    provenance = session.provenance
    assert session.get_providers() == ["CPUExecutionProvider"]
    counts = provenance.operators["CPUExecutionProvider"]
    assert counts["com.microsoft.Attention"] == 2
    assert counts["com.microsoft.BiasGelu"] == 2
    assert counts["com.microsoft.EmbedLayerNormalization"] == 1
    assert provenance.versions["onnxruntime"] == onnxruntime.__version__


def test_options_reach_the_runtime(bert, tmp_path):
    options = {
        "graph_optimization_level": "disable",
        "inter_op_threads": 2,
        "session_config": {"session.disable_prepacking": "1"},
        "profile_prefix": tmp_path / "profile",
    }
    with isorun.Session(bert, backend="ort-cpu", options=options, threads=1, padding="keep") as session:
        session.run(None, tiny.feeds())
        made = session._executable._session.get_session_options()
        assert (made.intra_op_num_threads, made.inter_op_num_threads) == (1, 2)
        assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        assert made.get_session_config_entry("session.disable_prepacking") == "1"
        profile = session._executable._session.end_profiling()
    with open(profile) as file:  # noqa: PTH123 (a path that the runtime gives)
        assert json.load(file)


def test_it_never_falls_back(session):
    assert session._executable._session._enable_fallback is False


def test_a_bad_request_is_an_error_and_no_line_on_the_terminal(session, capfd):
    with pytest.raises(isorun.InvalidFeeds, match="input_ids"):
        session.run(None, {**tiny.feeds(), "input_ids": tiny.feeds()["input_ids"] + 10**6})
    with pytest.raises(isorun.InvalidModel):
        isorun.Session(graph("agraph (float[n] x) => (float[n] y) { y = Reshape(x, x) }"), "ort-cpu")
    assert capfd.readouterr() == ("", "")
