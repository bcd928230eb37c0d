"""Compiled contexts: written once, loaded the next time, compiled again where they do not load.

The provider is ONNX Runtime's own for the CPU, whose "context" is a copy of the model.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import isorun
from isorun.errors import BackendFailed
from isorun.types import LoweredModel, ModelInfo
from isorun_backends.onnxruntime import context_cache, plugin_provider
from isorun_backends.onnxruntime.compiled_providers import PROVIDERS, Provider

X = np.array([[1.0, -2.0]], np.float32)
BACKEND = "ort-ep:plain"


class Compiler:
    """What opens ONNX Runtime's sessions, and writes contexts.

    Attributes:
        compiled: how often a context was compiled.
        rejects: contexts that do not load.
        writes: whether contexts are written at all.
    """

    def __init__(self, open_session: Callable[..., Any]) -> None:
        self.compiled = 0
        self.rejects: set[bytes] = set()
        self.writes = True
        self._open_session = open_session

    def __call__(self, name: str, model: LoweredModel, options: Any, providers: Any) -> Any:
        if model.path.parent.parent.name == "contexts" and model.path.read_bytes() in self.rejects:
            raise BackendFailed("the driver does not load it")
        session = self._open_session(name, model, options, providers)
        try:
            path = options.get_session_config_entry("ep.context_file_path")
        except RuntimeError:  # no contexts were requested
            return session
        self.compiled += 1
        if self.writes:
            shutil.copy(model.path, path)
        return session


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setitem(PROVIDERS, "plain", Provider("CPUExecutionProvider", "cpu"))
    compiler = Compiler(plugin_provider.open_session)
    monkeypatch.setattr(plugin_provider, "open_session", compiler)
    return compiler


@pytest.fixture
def model(tmp_path: Path) -> Path:
    parsed = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 2] x) => (float[1, 2] y) { z = Neg (x) y = Relu (z) }'
    )
    onnx.save(parsed, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def _run(model: Path, cache: Path, **options: Any) -> Mapping[str, Any]:
    """Run it with contexts, and return the details of its provenance."""
    options = {"compiled_contexts": True, **options}
    with isorun.Session(model, BACKEND, options=options, cache_dir=cache) as session:
        assert session.run(None, {"x": X})[0].tolist() == [[0.0, 2.0]]
        assert session.provenance.operators == {"CPUExecutionProvider": {"Neg": 1, "Relu": 1}}
        return session.provenance.details


def test_compiles_once(compiler: Compiler, model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert _run(model, cache)["compiled_context"] == "made"
    assert _run(model, cache)["compiled_context"] == "found"
    assert compiler.compiled == 1
    assert "compiled_context" not in _run(model, cache, compiled_contexts=False)
    (entry,) = (cache / "contexts").iterdir()
    assert entry.stat().st_mode & 0o077 == 0


def test_other_options_compile_again(compiler: Compiler, model: Path, tmp_path: Path) -> None:
    _run(model, tmp_path / "cache")
    _run(model, tmp_path / "cache", graph_optimization_level="basic")
    assert compiler.compiled == 2


def test_a_context_that_does_not_load_is_compiled_again(
    compiler: Compiler, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _run(model, tmp_path / "cache")
    (written,) = (tmp_path / "cache" / "contexts").glob("*/model.onnx")
    compiler.rejects.add(written.read_bytes())
    with pytest.raises(BackendFailed, match=r"does not load it\. Set options=.*compiled_contexts.*False"):
        _run(model, tmp_path / "cache")
    assert compiler.compiled == 2
    assert any(record.levelno == logging.WARNING and "compiles" in record.message for record in caplog.records)
    compiler.rejects.clear()
    assert _run(model, tmp_path / "cache")["compiled_context"] == "found"


def test_a_provider_without_contexts_is_an_error(compiler: Compiler, model: Path, tmp_path: Path) -> None:
    compiler.writes = False
    with pytest.raises(BackendFailed, match="wrote no compiled context"):
        _run(model, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "contexts").iterdir())


def test_key_covers_what_a_context_is_tied_to() -> None:
    info = ModelInfo((), (), 17, {})
    model = LoweredModel(Path("folder/model.onnx"), "onnx", "1" * 64, info, cached=False)
    settings = {"versions": {"onnxruntime": "1.31.1"}, "provider_options": {}, "target": ["P", "NPU"]}
    keys = {
        context_cache.key(model, **settings),
        context_cache.key(replace(model, fingerprint="2" * 64), **settings),
        context_cache.key(replace(model, path=Path("folder/other.onnx")), **settings),
        context_cache.key(model, **{**settings, "versions": {"onnxruntime": "1.32.0"}}),
        context_cache.key(model, **{**settings, "provider_options": {"precision": "fp16"}}),
        context_cache.key(model, **{**settings, "target": ["P", "GPU"]}),
    }
    assert len(keys) == 6
