"""Specs of whole runs of a matrix through the command line, and what came of them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import isolation

Isorun = Callable[..., "subprocess.CompletedProcess[str]"]

SLOW = """
models: {tiny: {path: tiny.onnx}}
shapes: [1x4]
reference: {backend: fake}
repetitions: 12
rounds: 1
repeats: 0
control: false
warmup: 0
feeds: 2
backends:
"""


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


def slow_spec(folder: Path, cells: int) -> Path:
    entries = (f"  - {{name: fake, label: c{index}, options: {{seconds: 0.02}}}}\n" for index in range(cells))
    return spec_file(folder, SLOW + "".join(entries))


def cells_of(isorun: Isorun, out: Path) -> dict[str, dict[str, Any]]:
    document = json.loads(isorun("report", out, "--format", "json").stdout)
    return {cell["id"]: cell for cell in document["cells"] if not cell["control"]}


def processes_of(out: Path) -> list[str]:
    """The command lines of processes that work in a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(out) in line and "isorun_matrix." in line:
            lines.append(line)
    return lines


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    assert isolation.wait_until(condition, seconds)
