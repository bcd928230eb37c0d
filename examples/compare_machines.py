"""Compare two machines: run ``python compare_machines.py measure NAME`` on each, copy both folders to one place, and
there ``python compare_machines.py show NAME NAME``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SPEC = """
models: {minilm: {checkpoint: all-MiniLM-L6-v2}}
shapes: [1x32]              # batch x sequence
backends: [ort-cpu, openvino]
rounds: 5
repeats: 0                  # more where the machine is shared: other programs disturb rounds
seconds: 0.3
seed: 1                     # the same feeds on every machine
"""


def isorun(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "isorun", *arguments], check=True)


def measure(name: str) -> None:
    """Measure every cell into the folder ``name``. Verdicts compare rounds: stop other programs first."""
    Path("machines.yaml").write_text(SPEC)
    isorun("matrix", "run", "machines.yaml", "--out", name)


def show(first: str, second: str) -> None:
    """What differs between the machines, and how much faster the second one is; an HTML report of both."""
    isorun("matrix", "compare", first, second)
    isorun("matrix", "merge", first, second, "--out", "both")
    isorun("matrix", "report", "both", "--format", "html", "--output", "machines.html")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    {"measure": measure, "show": show}[sys.argv[1]](*sys.argv[2:])
