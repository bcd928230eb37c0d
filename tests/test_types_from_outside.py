"""The types that users of the wheel see: mypy and pyright on a program of theirs, in an environment with the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import numpy as np

import isorun
from isorun.plugin import Backend, Capabilities, CompileConfig, Executable, LoweredModel


def hidden(path: str) -> tuple[int, ...]:
    feeds = {"input_ids": np.array([[2, 3]])}
    with isorun.Session(path, ["openvino", "ort-cpu"], precision="int8") as session:
        (output,) = session.run(None, feeds)
        skipped: tuple[tuple[str, str], ...] = session.provenance.skipped
        return (*np.asarray(output).shape, len(skipped))


def width(name: str) -> int:
    try:
        with isorun.Embedder(name) as embedder:
            return len(embedder.session.get_inputs()[0].name.upper()) + embedder.dimension
    except isorun.BackendUnavailable as error:
        return len(error.remedy + error.reason)


class Mine(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("primitive",))

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        raise NotImplementedError


isorun.Session(3)
"""
WRONG = PROGRAM.splitlines().index("isorun.Session(3)") + 1

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of isorun and, behind it, the packages of this one."""
    folder = tmp_path_factory.mktemp("outside")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "environment", with_pip=False)
    base = str(folder / "environment")
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}))
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    installed = Path(sysconfig.get_path("purelib"))
    for package in ("numpy", "onnx", "typer", "pydantic", "rich"):  # not isorun's, which would be found first
        (packages / package).symlink_to(installed / package)
    (folder / "program.py").write_text(PROGRAM)
    return folder


def test_mypy(environment: Path) -> None:
    python = environment / "environment" / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--python-executable={python}",
        "program.py",
    ]
    checked = subprocess.run(command, cwd=environment, capture_output=True, text=True, timeout=300)
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, checked.stdout
    assert errors[0].startswith(f"program.py:{WRONG}: error: Argument 1 to ")


def test_pyright_knows_the_types_of_public_names(environment: Path) -> None:
    pyright = shutil.which("pyright", path=Path(sys.executable).parent)
    if pyright is None:
        pytest.skip("needs pip install 'pyright[nodejs]'")
    # --verifytypes resolves the link that is a Python passed by --pythonpath (1.1.414), and misses the environment.
    path = f"{environment / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = [pyright, "--verifytypes", "isorun", "--ignoreexternal", "--outputjson"]
    variables = {**os.environ, "PATH": path}
    checked = subprocess.run(command, cwd=environment, env=variables, capture_output=True, text=True, timeout=300)
    report = json.loads(re.search(r"(?s)\{.*\}", checked.stdout)[0])  # type: ignore[index]
    assert report["typeCompleteness"]["completenessScore"] >= 0.95
