"""DeepSparse's classes, called with environment variables that disable its defaults.

By default, DeepSparse reports its import and every engine to its vendor over the network, and overrides the batch size
of a model.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_ENTERING = threading.Lock()  # environment variables belong to the process
_NO_REPORTS = {"NM_DISABLE_ANALYTICS": "1"}
_SHAPES_AS_THEY_ARE = {"NM_DISABLE_BATCH_OVERRIDE": "1"}


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    with _ENTERING:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def module() -> ModuleType:
    """The module of DeepSparse's engines, imported without a report to its vendor."""
    with _variables(_NO_REPORTS):
        return importlib.import_module("deepsparse.engine")


def compile_model(path: Path, threads: int) -> Any:
    """An engine for a model of fixed shapes, which serializes its runs.

    Args:
        path: the model; DeepSparse may write to the file, and does not need it afterwards.
        threads: the number of threads of a run.
    """
    deepsparse = module()
    with _variables(_NO_REPORTS | _SHAPES_AS_THEY_ARE):
        return deepsparse.Engine(str(path), None, num_cores=threads, scheduler=deepsparse.Scheduler.single_stream)


def layers(path: Path, threads: int, feeds: list[Any]) -> list[dict[str, Any]]:
    """The layers that an engine makes of a model, which is compiled again and run once for that.

    Args:
        path, threads: as for :func:`compile_model`.
        feeds: with the model's shapes and types.

    Returns:
        The layers in the order of execution, as DeepSparse describes them.
    """
    deepsparse = module()
    with _variables(_NO_REPORTS | _SHAPES_AS_THEY_ARE):
        engine = deepsparse.DebugAnalysisEngine(
            str(path), None, num_cores=threads, num_iterations=1, num_warmup_iterations=0
        )
    return list(engine.analyze(feeds)["layer_info"])
