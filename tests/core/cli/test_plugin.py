import importlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import backends
import tiny
from isorun import Session
from isorun.cli.plugin import TEMPLATE
from isorun.plugin import registry
from isorun_conformance import fakes, runner

Isorun = Callable[..., Any]
FILES = {
    "README.md",
    "pyproject.toml",
    "isorun_my_engine/__init__.py",
    "isorun_my_engine/backend.py",
    "isorun_my_engine/py.typed",
    "tests/test_conformance.py",
}


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_writes_a_plugin_under_its_name(isorun: Isorun, cwd: Path) -> None:
    ran = isorun("plugin", "new", "my-engine")
    assert ran.code == 0
    assert "pip install -e 'isorun-my-engine[test]'\n  isorun conformance my-engine\n" in ran.out
    folder = cwd / "isorun-my-engine"
    assert files(folder) == FILES
    assert [path.name for path in cwd.iterdir()] == ["isorun-my-engine"]
    text = "".join((folder / name).read_text(encoding="utf-8") for name in FILES)
    assert "emplate" not in text
    assert 'my-engine = "isorun_my_engine.backend:MyEngine"' in text
    assert "class MyEngine(Backend):" in text
    assert 'class TestMyEngine(Conformance, backend="my-engine")' in text


def test_name_may_contain_the_name_of_the_template(isorun: Isorun, cwd: Path) -> None:
    assert isorun("plugin", "new", "template-engine", "--folder", "deep/er").code == 0
    assert 'name = "isorun-template-engine"' in (cwd / "deep" / "er" / "pyproject.toml").read_text(encoding="utf-8")
    assert (cwd / "deep" / "er" / "isorun_template_engine" / "backend.py").is_file()


@pytest.mark.parametrize("kind", ["file", "empty folder", "folder", "dangling link"])
def test_overwrites_nothing(isorun: Isorun, cwd: Path, kind: str) -> None:
    target = cwd / "isorun-mine"
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling link":
        target.symlink_to(cwd / "nowhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "README.md").write_text("mine")
    before = files(cwd)
    ran = isorun("plugin", "new", "mine")
    assert (ran.code, ran.out) == (2, "")
    assert "--folder" in ran.err
    assert files(cwd) == before
    assert [path.name for path in cwd.iterdir()] == ["isorun-mine"]


INVALID = ("", "My", "my_engine", "3d", "-a", "a-", "a--b", "a.b", "../up", "a/b", "ä", "a b")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "not a valid name") for name in INVALID),
        *((name, "reserved") for name in ("auto", "none", "true")),
        *(("class", "keyword"), ("backend", "imports"), ("ort-cpu", "'ort-cpu'"), ("matrix", "'isorun_matrix'")),
    ],
)
def test_rejects_a_name(isorun: Isorun, cwd: Path, name: str, message: str) -> None:
    ran = isorun("plugin", "new", "--", name)
    assert (ran.code, list(cwd.iterdir())) == (2, [])
    assert message in ran.err


def test_copies_nothing_that_tools_left_in_the_template(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isorun.cli import plugin

    copy = cwd / "copy"
    for name in ("a.py", "__pycache__/a.pyc", ".pytest_cache/b", ".venv/c.py", "dist/x.whl", "y.egg-info/PKG-INFO"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(b"\xff" if name != "a.py" else b"template")
    monkeypatch.setattr(plugin, "TEMPLATE", copy)
    plugin.write("mine", cwd / "made")
    assert files(cwd / "made") == {"a.py"}
    assert (cwd / "made" / "a.py").read_text(encoding="utf-8") == "mine"


@pytest.fixture(params=[[], pytest.param(["--static-shapes"], marks=pytest.mark.long)], ids=["dynamic", "static"])
def wheel(cwd: Path, isorun: Isorun, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The content of a plugin's wheel, unpacked into a folder on ``sys.path``."""
    assert isorun("plugin", "new", "my-engine", *request.param).code == 0
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(cwd / "dist")]
    subprocess.run(build, cwd=cwd / "isorun-my-engine", check=True, capture_output=True)
    with fakes.installed({}) as folder:
        (archive,) = (cwd / "dist").glob("*.whl")
        zipfile.ZipFile(archive).extractall(folder)
        registry.refresh()
        yield folder


@pytest.mark.long
def test_plugin_is_listed_and_passes_conformance(isorun: Isorun, wheel: Path) -> None:
    listed = {row["name"]: row for row in isorun("backends", "--json").json}
    assert listed["my-engine"]["status"] == "available"
    report = runner.run("my-engine")
    assert report.passed, [check for check in report.checks if check.outcome not in ("passed", "skipped")]
    skipped = {capability.name for capability in report.capabilities if capability.status == "skipped"}
    models = {"model bert-3l", "model bert-6l", "model bert-base"}
    skipped -= {"static shapes", "data-dependent shapes"}
    options = {"options", "index checks", "damaged cache"}
    assert skipped == {*options, "determinism", "device arrays", "true device times", *models}


def test_results_of_the_template_are_right(wheel: Path) -> None:
    report = runner.run("my-engine", only=["results"])
    assert report.passed, [check for check in report.checks if check.outcome not in ("passed", "skipped")]


def test_template_returns_strings_as_objects_and_sequences_as_lists(
    isorun: Isorun, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isorun("plugin", "new", "text-engine").code == 0
    monkeypatch.syspath_prepend(cwd / "isorun-text-engine")
    module = importlib.import_module("isorun_text_engine.backend")
    rows = np.arange(6).reshape(2, 3)
    for graph, kind in (
        ("g (int64[N, 3] x) => (string[N, 3] y) { y = Cast <to = 8> (x) }", np.ndarray),
        ("g (int64[N, 3] x) => (seq(int64[M, 3]) y) { y = SplitToSequence <axis = 0> (x) }", list),
    ):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
        with backends.registered(**{"text-engine": module.TextEngine}), Session(model, "text-engine") as session:
            (result,) = session.run(None, {"x": rows})
        assert type(result) is kind
        assert kind is list or result.dtype == object
        assert np.array_equal(np.concatenate(result).astype(int).ravel(), rows.ravel())


def test_plugin_with_static_shapes_compiles_each_shape(
    isorun: Isorun, cwd: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isorun("plugin", "new", "static-engine", "--static-shapes").code == 0
    monkeypatch.syspath_prepend(cwd / "isorun-static-engine")
    module = importlib.import_module("isorun_static_engine.backend")
    with backends.registered(**{"static-engine": module.StaticEngine}), Session(bert, "static-engine") as session:
        for batch in (1, 3):
            assert len(session.run(["pooler_output"], tiny.feeds(batch=batch))[0]) == batch
        assert list(session.provenance.details["static_shapes"]["compiled"]) == ["1x32", "4x32"]


def test_template_is_the_folder_in_plugins() -> None:
    assert TEMPLATE.resolve() == Path(__file__).parents[3] / "plugins" / "isorun-template"
