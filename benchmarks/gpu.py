"""Run every GPU benchmark in one command.

    python benchmarks/gpu.py [--out gpu-results] [--packages FOLDER] [--minutes N] [--quick] [--only STAGE ...]

It runs from a checkout under the machine's own Python, installs nothing and needs no network: PYTHONPATH gets the
checkout's folders, ``--packages`` with what the machine lacks (``pip install --target FOLDER``), and a folder with the
backends' entry points. Each stage is a process, the most informative first; a stage that fails, hangs or dies is a line
of the summary, with its results so far. ``--minutes`` covers all stages; stages without time are reported as skipped.

Results: ``summary.json`` (the machine, and the lines and figures of all stages) and ``summary.txt``, rewritten after
every stage; ``STAGE.json``, written line by line; ``matrix/`` and its report ``matrix.md``.

Exit codes: 0 every stage passed or was skipped, 1 a stage failed or had no time, 2 a package is missing or too old,
3 there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "backends", "conformance", "matrix", "benchmarks")
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
BACKENDS = ("ort-cuda", "tensorrt", "ort-tensorrt", "ort-ep:webgpu")
STAGES = {
    "smoke": 240,
    "limits": 60,
    "times": 600,
    "parity": 300,
    "exports": 300,
    "kernels": 180,
    "packing": 420,
    "embedding": 420,
    "peers": 180,
    "arrays": 180,
    "threads": 300,
    "conformance": 900,
    "matrix": 7200,
}
"""The stages in order, with their limits in seconds."""
WIDTH = 300  # of a line of text: its beginning and end are kept
GRACE = 15
"""Seconds for a stage to clean up after its limit."""


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work), arguments.packages)
        if missing := [name for name in NEEDED if not importable(name)] + too_old():
            print(f"Missing packages: {', '.join(missing)}. Pass a folder that has them with --packages.")
            return 2
        machine = describe()
        out = arguments.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        (out / "machine.json").write_text(json.dumps(machine, indent=1))
        print_machine(machine)
        until = time.monotonic() + 60 * arguments.minutes
        results: dict[str, dict[str, Any]] = {}
        for name in arguments.only or STAGES:
            if not machine["gpus"]:
                results[name] = skipped(f"no GPU: {machine['problem']}")
                continue
            seconds = min(STAGES[name], until - time.monotonic() - GRACE)
            if seconds < GRACE:
                results[name] = {**skipped(f"no time left of {arguments.minutes:g} minutes"), "passed": False}
            else:
                results[name] = run_stage(name, out, seconds, quick=arguments.quick)
            write_summary(out, machine, results)
    write_summary(out, machine, results)
    print(f"\n==== results\n{text_of(results)}")
    if not machine["gpus"]:
        print(f"\nNo GPU: {machine['problem']}. Nothing was measured.")
        return 3
    passed = {result["passed"] for result in results.values()}
    return 0 if True in passed and False not in passed else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results")
    parser.add_argument("--packages", type=Path, help="folder with packages that this Python lacks")
    parser.add_argument("--minutes", type=float, default=180, help="limit for all stages together; default 180")
    parser.add_argument("--quick", action="store_true", help="smaller models and fewer runs, as a test")
    parser.add_argument("--only", action="append", choices=STAGES, help="run this stage only; may be repeated")
    return parser.parse_args()


def prepare(work: Path, packages: Path | None) -> None:
    """Make this process and its children import the checkout and find its backends by entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = work / f"{project['name']}-{project['version']}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items()) for group, entry in groups]
    (named / "entry_points.txt").write_text("\n".join(lines))
    paths = [str(work), *(str(ROOT / folder) for folder in FOLDERS)]
    paths += [str(packages.absolute())] if packages else []
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("ISORUN_CACHE_DIR", str(work / "cache"))


def too_old() -> list[str]:
    """Installed packages that are too old: ``onnx-ir 1.0.0 (needs 1.1)``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        spec.partition(">=") for spec in project["dependencies"] + project["optional-dependencies"]["graph"]
    ]
    outdated = []
    for name, _, minimum in requirements:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # missing packages are reported separately
            installed = importlib.metadata.version(name)
            if name.replace("-", "_") in NEEDED and numbers(installed) < numbers(minimum):
                outdated.append(f"{name} {installed} (needs {minimum})")
    return outdated


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def describe() -> dict[str, Any]:
    """The machine, the installed packages, and the availability of each backend."""
    from dataclasses import asdict

    from isorun.plugin import registry
    from isorun.system.packages import package_version
    from isorun_backends.nvidia.cuda_driver import driver
    from isorun_matrix.measurement import gpu

    installed_driver = driver()
    return {
        "python": platform.python_version(),
        "packages": {
            name: package_version(name.partition(".")[0]) or "?" for name in (*NEEDED, *HELPFUL) if importable(name)
        },
        "cuda_driver": installed_driver.cuda,
        "gpus": [asdict(device) for device in installed_driver.gpus],
        "nvml": [vars(device) for device in gpu.describe()],
        "problem": installed_driver.problem,
        "backends": {name: asdict(registry.get(name).availability()) for name in BACKENDS},
    }


def print_machine(machine: dict[str, Any]) -> None:
    print(f"Python {machine['python']}; " + ", ".join(map(" ".join, machine["packages"].items())))
    for device in machine["gpus"]:
        print(f"GPU: {device['name']}, compute capability {device['compute']}, {device['memory'] / 2**30:.0f} GiB")
    for name, state in machine["backends"].items():
        print(f"{name}: " + ("available" if state["ok"] else f"{state['reason']}. {state['remedy']}"))


def run_stage(name: str, out: Path, seconds: float, *, quick: bool) -> dict[str, Any]:
    """Run a stage in a separate process group, and stop the group after its limit."""
    file = out / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "gpu_stages", name, str(file), *(["--quick"] if quick else [])]
    print(f"\n== {name}, at most {seconds:.0f} s", flush=True)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        how = f"ended with {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        how = f"did not end within {seconds:.0f} s"
        stop(process)
    except KeyboardInterrupt:
        stop(process)
        raise
    result: dict[str, Any] = {"passed": False, "ended": False, "lines": [], "figures": {}}
    if file.is_file():
        result = json.loads(file.read_text())
    if not result["ended"]:
        result["passed"] = False
        result["lines"].append(f"FAILED {how}; the lines above were written before")
    return result


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the group, so that a matrix keeps its finished cells; then kill what is left."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def skipped(reason: str) -> dict[str, Any]:
    return {"passed": None, "ended": True, "lines": [f"skipped: {reason}"], "figures": {}}


def write_summary(out: Path, machine: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    (out / "summary.json").write_text(json.dumps({"machine": machine, "stages": results}, indent=1))
    (out / "summary.txt").write_text(text_of(results))


def text_of(results: dict[str, dict[str, Any]]) -> str:
    words = {True: "passed", False: "FAILED", None: "skipped"}
    lines = []
    for name, result in results.items():
        printed = [line.rstrip().replace("\n", " ") for line in result["lines"]]
        shown = [text if len(text) <= WIDTH else f"{text[: WIDTH // 2]} ... {text[-WIDTH // 2 :]}" for text in printed]
        lines += [f"{name}: {words[result['passed']]}", *(f"  {line}" for line in shown), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
