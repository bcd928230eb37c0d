"""The stages of ``benchmarks/gpu.py``, each run in a separate process: ``python -m gpu_stages NAME FILE [--quick]``.

What a stage finds is in its file line by line, so that one that dies or hangs has said what it had. A backend that
fails in a stage is a line of it, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpu_correctness import arrays, exports, parities, smoke, threads
from gpu_embedding import embedding
from gpu_packing import packing, peers
from gpu_speed import kernels, limits, times
from gpu_stage import BACKENDS, Stage

from isorun.plugin import registry
from isorun_matrix.measurement import gpu


def conformance(stage: Stage) -> None:
    """The conformance suite on every available GPU backend."""
    from isorun_conformance import certificate, runner

    for backend in BACKENDS:
        if not registry.get(backend).availability().ok:
            stage.say(f"       {backend} is skipped: {registry.get(backend).availability().reason}")
            continue
        with stage.trying(backend):
            report = runner.run(backend, progress=lambda check, ended, of: print(f"{ended}/{of} {check}", flush=True))
            stage.figures[backend] = report.as_dict()
            document = certificate.certificate(report)
            stage.file.with_name(f"{backend}.json").write_text(json.dumps(document, indent=2) + "\n")
            failed = [check for check in report.checks if check.outcome not in ("passed", "skipped")]
            stage.expect(report.passed, f"{backend}: {len(failed)} of {len(report.checks)} checks of the suite fail")
            for check in failed:
                stage.say(f"       {check.name}, {check.outcome}: {check.message.partition(chr(10))[0]}")


def matrix(stage: Stage) -> None:
    """``matrix/gpu.yaml``; its folder has the results, even if its time ends early."""
    spec = Path(__file__).resolve().parents[1] / "matrix" / "gpu.yaml"
    folder, isorun_matrix = stage.file.with_name("matrix"), [sys.executable, "-m", "isorun", "matrix"]
    try:
        code = subprocess.run([*isorun_matrix, "run", str(spec), "--out", str(folder)], check=False).returncode
        stage.expect(code == 0, f"isorun matrix run, which ends with {code}: {folder}")
    finally:
        report = [*isorun_matrix, "report", str(folder), "--format", "md"]
        completed = subprocess.run(report, check=False, capture_output=True, text=True)
        folder.with_suffix(".md").write_text(completed.stdout or completed.stderr)


STAGES: dict[str, Callable[[Stage], None]] = {
    "smoke": smoke,
    "limits": limits,
    "times": times,
    "parity": parities,
    "exports": exports,
    "kernels": kernels,
    "packing": packing,
    "embedding": embedding,
    "peers": peers,
    "arrays": arrays,
    "threads": threads,
    "conformance": conformance,
    "matrix": matrix,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    stage = Stage(arguments.file, quick=arguments.quick)
    try:
        with stage.trying(arguments.stage):
            STAGES[arguments.stage](stage)
        stage.ended = True
    finally:
        stage.figures["gpus"] = [vars(device) for device in gpu.describe()]
        stage.write()
    return 1 if stage.passed is False else 0


if __name__ == "__main__":
    sys.exit(main())
