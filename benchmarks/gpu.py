"""Everything that has to be seen on a machine with an NVIDIA GPU, in one command.

    python benchmarks/gpu.py [--out gpu-results] [--packages FOLDER] [--quick] [--only STAGE ...]

It runs from a checkout under the machine's own Python, installs nothing and needs no network: the checkout's folders,
and ``--packages`` with what the machine lacks (``pip install --target FOLDER``), go on PYTHONPATH, beside a folder that
names the backends as an installed isorun would. Each stage is a process of its own; one that fails or hangs is a line
of the summary. Plain text comes last, on standard output; every stage's JSON is in the folder.

Exit codes: 0 all stages passed, 1 one did not, 2 something to run it with is missing, 3 there is no GPU.

Not run on hardware yet: without a GPU it says so and stops.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "backends", "matrix", "benchmarks")
NEEDED = ("numpy", "onnx", "onnx_ir", "stevedore", "platformdirs", "filelock")
HELPFUL = (
    "onnxruntime",
    "tensorrt",
    "pycuda",
    "cuda.bindings",
    "cupy",
    "torch",
    "pynvml",
    "pytest",
    "pydantic",
    "yaml",
)
BACKENDS = ("ort-cuda", "tensorrt", "ort-tensorrt")
STAGES = {
    "limits": 300,
    "parity": 1800,
    "conformance": 1800,
    "times": 1800,
    "arrays": 600,
    "threads": 900,
    "matrix": 7200,
}
"""What is run, in this order, with the seconds that each may take."""


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work), arguments.packages)
        missing = [name for name in NEEDED if not importable(name)]
        if missing:
            print(f"Missing here: {', '.join(missing)}. Give a folder that has them with --packages.")
            return 2
        machine = describe()
        out = arguments.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        (out / "machine.json").write_text(json.dumps(machine, indent=1))
        print_machine(machine)
        if not machine["gpus"]:
            print(f"\nNo GPU: {machine['trouble']}. Nothing was measured.")
            return 3
        wanted = arguments.only or STAGES
        results = {name: run_stage(name, out, quick=arguments.quick) for name in wanted}
    (out / "summary.json").write_text(json.dumps(results, indent=1))
    return print_results(results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="where results go")
    parser.add_argument("--packages", type=Path, help="a folder with packages that this Python lacks")
    parser.add_argument("--quick", action="store_true", help="smaller models, fewer runs: to see that it works")
    parser.add_argument("--only", action="append", choices=STAGES, help="one stage alone; any number of times")
    return parser.parse_args()


def prepare(work: Path, packages: Path | None) -> None:
    """Have this process and its children import the checkout, and find its backends by their entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = work / f"{project['name']}-{project['version']}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for group, each in groups]
    (named / "entry_points.txt").write_text("\n".join(lines))
    paths = [str(work), *(str(ROOT / folder) for folder in FOLDERS)]
    paths += [str(packages.absolute())] if packages else []
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("ISORUN_CACHE_DIR", str(work / "cache"))


def importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


def describe() -> dict[str, Any]:
    """The machine, what is installed, and what each backend says of itself here."""
    from dataclasses import asdict

    from isorun import registry
    from isorun_backends.cuda_driver import driver
    from isorun_matrix import gpu

    found = driver()
    return {
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in (*NEEDED, *HELPFUL) if importable(name)},
        "cuda_driver": found.cuda,
        "gpus": [asdict(each) for each in found.gpus],
        "nvml": gpu.describe(),
        "trouble": found.trouble,
        "backends": {name: asdict(registry.get(name).availability()) for name in BACKENDS},
    }


def package_version(name: str) -> str:
    from importlib.metadata import packages_distributions

    for owner in packages_distributions().get(name.partition(".")[0], [name]):
        try:
            return version(owner)
        except PackageNotFoundError:
            continue
    return "?"


def print_machine(machine: dict[str, Any]) -> None:
    print(f"Python {machine['python']}; " + ", ".join(f"{name} {each}" for name, each in machine["packages"].items()))
    for each in machine["gpus"]:
        print(f"GPU: {each['name']}, compute capability {each['compute']}, {each['memory'] / 2**30:.0f} GiB")
    for name, here in machine["backends"].items():
        print(f"{name}: " + ("available" if here["ok"] else f"{here['reason']}. {here['remedy']}"))


def run_stage(name: str, out: Path, *, quick: bool) -> dict[str, Any]:
    """Run a stage in a process of its own."""
    file = out / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "gpu_stages", name, str(file), *(["--quick"] if quick else [])]
    print(f"\n== {name}", flush=True)
    try:
        code = subprocess.run(command, check=False, timeout=STAGES[name]).returncode
    except subprocess.TimeoutExpired:
        return {"passed": False, "lines": [f"did not end within {STAGES[name]} s"]}
    if not file.is_file():
        return {"passed": False, "lines": [f"ended with {code} and left no result"]}
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def print_results(results: dict[str, dict[str, Any]]) -> int:
    print("\n==== results")
    for name, result in results.items():
        print(f"\n{name}: {'passed' if result['passed'] else 'FAILED'}")
        for line in result["lines"]:
            print(f"  {line}")
    return 0 if all(result["passed"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
