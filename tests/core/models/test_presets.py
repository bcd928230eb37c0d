from __future__ import annotations

import numpy as np
import onnx
import pytest

import tiny
from isorun.errors import InvalidModel
from isorun.models import presets
from isorun.system.cache import Cache


@pytest.fixture
def small(monkeypatch):
    """A preset of the tests' own: the real ones are the same, larger."""
    sizes = {key: tiny.CONFIG[key] for key in ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")}
    monkeypatch.setitem(presets._SIZES, "small", {**sizes, "num_hidden_layers": 3})
    return "small"


def test_the_same_name_and_seed_give_the_same_file(small, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        presets.write(small, seed, tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_it_is_a_bert_in_the_fused_form(small, tmp_path):
    presets.write(small, 0, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.op_type == "SelfAttention" for node in model.graph.node) == 3
    assert [output.name for output in model.graph.output] == ["last_hidden_state", "pooler_output"]


def test_activations_stay_in_a_trained_models_range(small, tmp_path):
    import onnxruntime

    presets.write(small, 0, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    hidden, pooled = session.run(None, tiny.feeds(4, 32))
    assert 0.3 < hidden.std() < 3
    assert abs(hidden).max() < 20
    assert 0.1 < abs(pooled).mean() < 0.95, "the pooler's tanh is not saturated"
    rows = hidden.reshape(-1, hidden.shape[-1])
    assert np.corrcoef(rows).mean() < 0.9, "tokens have not all become one"


def test_builds_a_preset_once(small, tmp_path):
    cache = Cache(tmp_path)
    path = presets.build(small, 0, cache)
    stamp = path.stat().st_mtime_ns
    assert presets.build(small, 0, cache) == path
    assert path.stat().st_mtime_ns == stamp
    assert presets.build(small, 1, cache) != path


def test_rejects_an_unknown_name_and_a_negative_seed(tmp_path):
    with pytest.raises(InvalidModel, match="'bert-3l'"):
        presets.write("bert-3", 0, tmp_path / "model.onnx")
    with pytest.raises(InvalidModel, match="seed"):
        presets.write("bert-3l", -1, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
