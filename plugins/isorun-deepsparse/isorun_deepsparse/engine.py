"""DeepSparse's own classes, entered so that nothing beside the engine changes.

Left to itself, DeepSparse tells its maker over the network that it was imported, and of every engine. An engine that is
to take a model's shapes as they are is asked for by way of an environment variable.
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

_ENTERING = threading.Lock()  # environment variables are the process's
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
    """DeepSparse's engines, without the reports to its maker."""
    with _variables(_NO_REPORTS):
        return importlib.import_module("deepsparse.engine")


def compile_model(path: Path, threads: int) -> Any:
    """An engine for a model of fixed shapes. Runs of several threads wait for one another in it.

    Args:
        path: the model; the file is DeepSparse's to write to, and not needed afterwards.
        threads: how many a run uses.
    """
    deepsparse = module()
    with _variables(_NO_REPORTS | _SHAPES_AS_THEY_ARE):
        return deepsparse.Engine(str(path), None, num_cores=threads, scheduler=deepsparse.Scheduler.single_stream)


def layers(path: Path, threads: int, feeds: list[Any]) -> list[dict[str, Any]]:
    """What an engine makes of a model: compiled once more, with one run that is looked at.

    Args:
        path, threads: as for :func:`compile_model`.
        feeds: of the model's shapes and types.

    Returns:
        The layers, in the order in which they run, as DeepSparse describes them.
    """
    deepsparse = module()
    with _variables(_NO_REPORTS | _SHAPES_AS_THEY_ARE):
        engine = deepsparse.DebugAnalysisEngine(
            str(path), None, num_cores=threads, num_iterations=1, num_warmup_iterations=0
        )
    return list(engine.analyze(feeds)["layer_info"])
