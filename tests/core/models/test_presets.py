import numpy as np
import pytest

import exports
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


def test_activations_stay_in_a_trained_models_range(small, tmp_path):
    presets.write(small, 0, tmp_path / "model.onnx")
    hidden, pooled = exports.run(tmp_path / "model.onnx", tiny.feeds(4, 32))
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
