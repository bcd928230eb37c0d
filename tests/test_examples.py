"""The examples, run as their first lines say."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import isorun
from archives import unpack
from isorun.plugin import registry
from isorun.system.cache import Cache

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny checkpoints with heads."""
    return unpack("tasks", tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "a.md").write_text("Bread is baked from flour.\n\nTrains leave at noon.")
    (tmp_path / "b.txt").write_text("The moon is far away.")
    (tmp_path / "latin-1.txt").write_bytes(b"Caf\xe9")
    (tmp_path / "folder.md").mkdir()
    return tmp_path


def run(name: str, *arguments: object, folder: Path | None = None, **variables: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_listed_and_tested() -> None:
    page, tests = (EXAMPLES / "README.md").read_text(encoding="utf-8"), Path(__file__).read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert [name for name in names if f"]({name})" not in page or f'"{name}"' not in tests] == []


def test_without_arguments_an_example_says_how_it_is_run() -> None:
    command = [sys.executable, str(EXAMPLES / "onnxruntime_application.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "python onnxruntime_application.py MODEL.onnx" in done.stderr


def test_onnxruntime_application(bert: Path) -> None:
    assert "last_hidden_state (2, 8, " in run("onnxruntime_application.py", bert)


def test_backend_in_60_lines(bert: Path) -> None:
    *_, difference = run("backend_in_60_lines.py", bert).split()
    assert float(difference) < 1e-4


@pytest.mark.parametrize(
    "path", ["examples/backend_in_60_lines.py:Evaluator", "plugins/isorun-template/isorun_template/backend.py:Template"]
)
def test_backends_to_start_from_refuse_an_opset_that_their_evaluator_does_not_follow(path: str) -> None:
    """ONNX's reference evaluator computes the softmax of opset 13 in opset 11 too."""
    file, name = path.split(":")
    graph = "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax <axis = 1> (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 11]> {graph}')
    registry.register("starting", runpy.run_path(str(EXAMPLES.parent / file))[name])
    try:
        with pytest.raises(isorun.UnsupportedModel, match="starting supports opset 13 and later, got 11"):
            isorun.Session(model.SerializeToString(), "starting")
    finally:
        registry.unregister("starting")


def test_names_in_texts(tasks: Path, texts: Path) -> None:
    printed = run("names_in_texts.py", texts / "a.md", tasks / "bert-entities")  # random weights may see no names
    assert all(re.fullmatch(r" *[1-9]\d*  \S+ +\S.*", line) for line in printed.splitlines())


@pytest.mark.long
def test_semantic_search(minilm: Path, minilm_cache: Cache, texts: Path) -> None:
    best, *_ = run(
        "semantic_search.py", texts, "When does it depart?", ISORUN_CACHE_DIR=str(minilm_cache.root)
    ).splitlines()
    assert "Trains leave at noon" in best


@pytest.mark.long
def test_reranked_rag(minilm: Path, tasks: Path, texts: Path) -> None:
    prompt = run("reranked_rag.py", texts, "When does it depart?", minilm, tasks / "bert-classes-regression")
    assert "Trains leave at noon." in prompt
    assert "[3] " in prompt
    assert "Question: When does it depart?" in prompt


@pytest.mark.long
def test_classify_with_ray(tasks: Path, texts: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'isorun[ray]'")
    model = tasks / "bert-classes-single_label_classification"
    run("classify_with_ray.py", texts / "a.md", texts / "classified", model)
    written = [
        line for path in (texts / "classified").glob("*.json") for line in path.read_text(encoding="utf-8").splitlines()
    ]
    rows = [json.loads(line) for line in written]
    assert {row["text"] for row in rows if row["text"]} == {"Bread is baked from flour.", "Trains leave at noon."}
    assert all(0 < row["score"] <= 1 and row["label"] for row in rows)


@pytest.mark.long
def test_pin_precision(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"Text {number} of those in use.\n" for number in range(30)))
    first = run("pin_precision.py", "texts.txt", minilm, folder=tmp_path)
    pinned = json.loads((tmp_path / "precision.json").read_text(encoding="utf-8"))
    assert pinned["precision"] in ("fp32", "bf16", "int8")
    assert first.startswith("(30, 384) in ")
    assert run("pin_precision.py", "texts.txt", minilm, folder=tmp_path) == first


@pytest.mark.long
def test_compare_machines(tmp_path: Path) -> None:
    for name in ("here", "there"):
        run("compare_machines.py", "measure", name, folder=tmp_path)
    shown = run("compare_machines.py", "show", "here", "there", folder=tmp_path)
    assert "openvino fp32" in shown
    assert "the feeds differ" not in shown
    assert "<html" in (tmp_path / "machines.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_draw_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "draw_a_report.ipynb").read_text(encoding="utf-8"))
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])  # nothing of the machine that wrote it
    namespace: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
    figure = namespace["figure"]
    assert [(bar.name, len(bar.y)) for bar in figure.data] == [("ort-cpu", 2), ("openvino", 2)]
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
