"""The environment variables around DeepSparse's classes, with a fake module instead of DeepSparse."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from isorun_deepsparse import engine

NAMES = ("NM_DISABLE_ANALYTICS", "NM_DISABLE_BATCH_OVERRIDE")


def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in NAMES}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of a fake DeepSparse, each with the environment variables at that moment."""
    calls: list[Any] = []

    class Engine:
        def __init__(self, *arguments: object, **settings: object) -> None:
            calls.append((variables(), arguments, settings))
            os.environ.pop("NM_DISABLE_BATCH_OVERRIDE", None)  # as DeepSparse does
            if arguments[0] == "bad":
                raise RuntimeError("NM: error")

        def analyze(self, feeds: list[object]) -> dict[str, Any]:
            return {"layer_info": [{"name": "gemm_0", "feeds": feeds}]}

    inner = ModuleType("deepsparse.engine")
    vars(inner).update(Engine=Engine, DebugAnalysisEngine=Engine, Scheduler=SimpleNamespace(single_stream="single"))
    outer = ModuleType("deepsparse")
    vars(outer).update(engine=inner)
    monkeypatch.setitem(sys.modules, "deepsparse", outer)
    monkeypatch.setitem(sys.modules, "deepsparse.engine", inner)
    monkeypatch.delenv("NM_DISABLE_ANALYTICS", raising=False)
    monkeypatch.setenv("NM_DISABLE_BATCH_OVERRIDE", "the user's")
    return calls


@pytest.mark.parametrize("path", ["good", "bad"])
def test_variables_are_set_for_an_engine_and_restored(seen: list[Any], path: str) -> None:
    before = variables()
    if path == "bad":
        with pytest.raises(RuntimeError, match="NM: error"):
            engine.compile_model(Path(path), 3)
    else:
        engine.compile_model(Path(path), 3)
    ((during, arguments, settings),) = seen
    assert during == {"NM_DISABLE_ANALYTICS": "1", "NM_DISABLE_BATCH_OVERRIDE": "1"}
    assert (arguments, settings) == ((path, None), {"num_cores": 3, "scheduler": "single"})
    assert variables() == before


def test_layers_come_from_the_analysis_engine(seen: list[Any]) -> None:
    before = variables()
    assert engine.layers(Path("model"), 2, ["x"]) == [{"name": "gemm_0", "feeds": ["x"]}]
    assert seen[0][2] == {"num_cores": 2, "num_iterations": 1, "num_warmup_iterations": 0}
    assert variables() == before


def test_import_disables_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "deepsparse"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nat_import = os.environ.get('NM_DISABLE_ANALYTICS')\n")
    (package / "engine.py").write_text("from deepsparse import at_import\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("deepsparse", "deepsparse.engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("NM_DISABLE_ANALYTICS", raising=False)
    try:
        assert engine.module().at_import == "1"
        assert "NM_DISABLE_ANALYTICS" not in os.environ
    finally:
        for name in ("deepsparse", "deepsparse.engine"):
            sys.modules.pop(name, None)
