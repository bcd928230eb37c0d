"""What a session says that it did, and what it keeps for the next one."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

import isorun
import programs
import tiny
from backends import BACKENDS
from isorun.system.cache import Cache


def test_provenance_is_what_the_runtime_reports(session):
    provenance = session.provenance
    assert provenance.backend in BACKENDS
    assert provenance.precision == "fp32"
    assert provenance.device
    assert sum(count for counts in provenance.operators.values() for count in counts.values()) > 10
    assert provenance.fused == {
        "EmbedLayerNormalization": 1,
        "SelfAttention": 2,
        "SkipLayerNormalization": 4,
        "BiasGelu": 2,
    }
    assert provenance.versions["isorun"]
    assert len(provenance.versions) > 1
    assert json.loads(json.dumps(provenance.as_dict()))["backend"] == provenance.backend


def test_provenance_names_the_lowered_model(bert, any_backend, tmp_path):
    dialect = {"ort-cpu": "com.microsoft.cpu", "openvino": "primitive", "reference": "primitive"}[any_backend]
    for cache in ("made", "found"):
        with isorun.Session(bert, backend=any_backend, cache_dir=tmp_path) as session:
            assert (session.provenance.dialect, session.provenance.cache) == (dialect, cache)
            assert session.provenance.fingerprint == hashlib.sha256(bert.read_bytes()).hexdigest()


SECOND = """
import json, sys
import numpy as np
import isorun
path, backend, cache, feeds = sys.argv[1:]
with isorun.Session(path, backend=backend, cache_dir=cache) as session:
    session.run(None, dict(np.load(feeds)))
    heavy = sorted({"onnx", "onnx_ir", "google.protobuf", "safetensors"} & set(sys.modules))
    print(json.dumps([heavy, session.provenance.cache]))
"""


@pytest.mark.parametrize(("backend", "kind"), [("ort-cpu", "checkpoint"), ("openvino", "file")])
def test_the_second_session_on_a_model_does_no_graph_work(bert, checkpoint, tmp_path, backend, kind):
    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    model = bert if kind == "file" else checkpoint
    arguments = model, backend, tmp_path / "cache", tmp_path / "feeds.npz"
    answers = [json.loads(programs.printed(SECOND, *arguments)) for _ in range(2)]
    assert answers[0][1] == "made"
    assert "onnx" in answers[0][0]
    assert answers[1][1] == "found"
    assert answers[1][0] == []


def test_many_sessions_at_once_on_one_new_model(bert, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: isorun.Session(bert, backend="ort-cpu", cache_dir=tmp_path), range(4)))
    answers = [session.run(None, tiny.feeds())[0] for session in sessions]
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])
    assert len(list((tmp_path / "lowered").iterdir())) == 1
    for session in sessions:
        session.close()


def test_models_of_every_kind_give_one_answer(bert, checkpoint, tmp_path):
    expected = None
    for model in (bert, str(bert), bert.read_bytes(), onnx.load(bert), checkpoint, Path(checkpoint)):
        with isorun.Session(model, backend="ort-cpu", cache_dir=tmp_path) as session:
            hidden = session.run(None, tiny.feeds())[0]
        expected = hidden if expected is None else expected
        np.testing.assert_array_equal(hidden, expected)
    assert Cache(tmp_path).root.is_dir()


def test_provenance_names_the_tensors_that_a_checkpoint_s_graph_omits(tmp_path, checkpoint):
    from isorun.models import checkpoint as checkpoints

    head = {"cls.predictions.bias": np.zeros(3, np.float32)}
    folder = tiny.write_checkpoint(tmp_path / "tiny", {**tiny.weights(), **head}, architectures=["BertForMaskedLM"])
    checkpoints.build(folder, tmp_path / "built.onnx")
    for model in (folder, tmp_path / "built.onnx"):
        with isorun.Session(model, outputs=["last_hidden_state"], backend="ort-cpu") as session:
            assert session.provenance.details["omitted"] == {"heads": ["cls.predictions.bias"]}
    with isorun.Session(checkpoint, backend="ort-cpu") as session:
        assert "omitted" not in session.provenance.details
