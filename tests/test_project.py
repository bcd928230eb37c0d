"""The project as a whole: the content of a wheel, the cost of an import, the import contract, words in files."""

import graphlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import product
from pathlib import Path

import pytest
import yaml

import coverage_report
import isorun
import programs

ROOT = Path(__file__).parents[1]
ROOTS = (
    *("core/isorun", "backends/isorun_backends", "matrix/isorun_matrix", "conformance/isorun_conformance"),
    "serve/isorun_serve",
)
HEAVY = {
    *("onnx", "onnx_ir", "onnxruntime", "openvino", "stevedore", "typer", "rich", "pydantic", "google.protobuf"),
    *("plotly", "jinja2", "tokenizers", "safetensors", "huggingface_hub", "yaml"),
}


def tracked() -> list[str]:
    ran = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip("not a git checkout")
    return [name for name in ran.stdout.splitlines() if (ROOT / name).is_file()]


def test_wheel_contains_every_file_of_the_packages(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("isorun-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to((ROOT / root).parent).as_posix()
        for root in ROOTS
        for path in (ROOT / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    plugin = ROOT / "plugins" / "isorun-template"  # which core/isorun/plugin/template links to
    expected |= {
        f"isorun/plugin/template/{name.removeprefix('plugins/isorun-template/')}"
        for name in tracked()
        if (ROOT / name).is_relative_to(plugin)
    }
    assert held == expected
    assert {"isorun/py.typed", "isorun/graph/ops/dialects/onnx.onnxtxt", "isorun_backends/py.typed"} <= held


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"(none)": project["dependencies"], **project["optional-dependencies"]}
    needed = {
        (extra, name)
        for extra, requirements in extras.items()
        if extra not in ("dev", "docs")
        for name in {re.match(r"[\w-]+", requirement)[0] for requirement in requirements} - {"isorun"}
    }
    explained, extra = set(), ""
    for row in dependency_rows():
        extra = row[0].replace("`", "") or extra
        explained |= set(product(extra.split(", "), row[1].split(", ")))
    assert needed <= explained


def dependency_rows() -> list[list[str]]:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    return [[cell.strip() for cell in row.split("|")] for row in re.findall(r"(?m)^\|(.*)\|$", page)[2:]]


FAMILIES = ("Apache", "BSD", "MIT", "MPL", "Mozilla")


def families(text: str) -> set[str]:
    return {name.replace("Mozilla", "MPL") for name in FAMILIES if re.search(rf"\b{name}\b", text)}


def test_licences_are_those_that_the_packages_declare():
    """In the versions that the page is about; older ones may have other licences."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line
    )
    for _, names, _, licence, _ in dependency_rows():
        for name in names.split(", "):
            try:
                about = importlib.metadata.metadata(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            if about["Version"] != pinned.get(name):
                continue
            declared = [about.get("License-Expression") or "", (about.get("License") or "").partition("\n")[0]]
            declared += [text for text in about.get_all("Classifier", []) if text.startswith("License")]
            assert families(licence) == families(" ".join(declared)) or licence.startswith("none declared"), name


def test_workflows_and_issue_forms_are_valid():
    """Commands of `make` in a workflow exist, and each form asks for the installation or the model."""
    rules = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
        assert runs
        for words in (run.split() for run in runs if run.startswith("make ")):
            assert {
                word for word in words[1:] if re.fullmatch(r"[a-z-]+", word) and word not in (*rules, "test-")
            } == set()
    for name in ("bug", "performance"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
        fields = {field["id"]: field for field in form["body"]}
        assert "isorun doctor --json" in fields["doctor"]["attributes"]["label"]
        assert fields["doctor"]["validations"]["required"]


def imported_by(statement: str) -> set[str]:
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(programs.printed(script)))


@pytest.mark.parametrize(
    "statement",
    [
        "import isorun",
        "from isorun.plugin import listing, registry; [registry.get(name).installed() for name in registry.names()]",
    ],
)
def test_import_loads_nothing_heavy(statement):
    allowed = {"stevedore"} if "registry" in statement else set()  # it loads entry points
    assert imported_by(statement) & (HEAVY - allowed) == set()


def test_import_isorun_loads_only_numpy_and_the_standard_library():
    others = {name.partition(".")[0] for name in imported_by("import isorun") - imported_by("import numpy")}
    assert others - set(sys.stdlib_module_names) <= {"isorun", "numpy", "isorun_backends"}


def test_package_has_its_version_and_public_names():
    assert isorun.__version__ == importlib.metadata.version("isorun")
    assert set(dir(isorun)) == {*isorun.__all__, "__version__"}
    with pytest.raises(AttributeError, match="'isorun' has no attribute 'nothing'"):
        isorun.nothing  # noqa: B018


def test_imports_point_down():
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"[1-9]\d* kept, 0 broken", ran.stdout)


def test_benchmarks_import_each_other_without_cycles():
    """The contract in pyproject.toml has those of packages."""
    files = {path.stem: path for path in (ROOT / "benchmarks").glob("*.py")}
    imported = {
        name: re.findall(r"(?m)^ *(?:import|from) (\w+)", path.read_text(encoding="utf-8"))
        for name, path in files.items()
    }
    order = graphlib.TopologicalSorter({name: files.keys() & names for name, names in imported.items()}).static_order()
    assert set(order) == files.keys()  # a CycleError names the files of a cycle


def test_no_file_names_a_local_path_or_a_package_index():
    # Concatenated, so that this file does not match.
    places = [r"/(?:home|Users|roo" + r"t)/\w", r"/op" + r"t/\w", r"/wor" + r"k/\w", "index-" + r"url\s*=?\s*http"]
    wrong = re.compile("|".join(places))
    lines = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines += [f"{name}: {line.strip()}" for line in text.splitlines() if wrong.search(line)]
    assert lines == []


def test_coverage_report_names_files_below_85_percent():
    files = {"core/a.py": (100, 84), "core/b.py": (100, 85), "matrix/c.py": (9, 0)}
    rows = coverage_report.table(files).splitlines()
    assert rows[2:5] == ["| core | 200 | 84.5% |", "| matrix | 9 | 0.0% |", "| all | 209 | 80.9% |"]
    assert rows[8:] == ["| core/a.py | 100 | 84% |"]
