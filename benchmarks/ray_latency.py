"""Latencies of ``isorun matrix run --ray`` on a cluster of this machine alone, divided by those of a plain run.

    python benchmarks/ray_latency.py [--runs 5] [--preset bert-3l] [--backends ort-cpu]

The runs alternate, and the ratio of each pair is of the medians over its rounds. Expected is 0.98 to 1.02. Takes about
a minute a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SPEC = """
models: {{model: {{preset: {preset}}}}}
shapes: [1x128]
control: false
machines: {{here: {{}}}}
backends: [{backends}]
"""
ISORUN = [sys.executable, "-c", "import sys; from isorun.cli import main; sys.exit(main())", "matrix"]


def medians(folder: Path, spec: Path, *options: str) -> dict[str, float]:
    """Run a spec, and return the median of each cell in milliseconds."""
    subprocess.run([*ISORUN, "run", spec, "--out", folder, *options], check=True, stdout=subprocess.DEVNULL)
    run = folder / "machines" / "here" if options else folder
    shown = subprocess.run([*ISORUN, "report", run, "--format", "json"], check=True, stdout=subprocess.PIPE)
    return {cell["label"]: cell["latency_ms"]["p50"] for cell in json.loads(shown.stdout)["cells"]}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--preset", default="bert-3l")
    parser.add_argument("--backends", nargs="+", default=["ort-cpu"])
    arguments = parser.parse_args()
    import ray

    ray.init("local", num_cpus=1, resources={"isorun": 1}, include_dashboard=False, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        spec = Path(work) / "spec.yaml"
        spec.write_text(SPEC.format(preset=arguments.preset, backends=", ".join(arguments.backends)))
        for number in range(arguments.runs):
            plain = medians(Path(work) / f"plain-{number}", spec)
            through_ray = medians(Path(work) / f"ray-{number}", spec, "--ray", address)
            for label, p50 in plain.items():
                ratios.setdefault(label, []).append(through_ray[label] / p50)
                print(f"{label}: {p50:.3f} ms, through Ray {through_ray[label]:.3f} ms: {ratios[label][-1]:.3f}")
    for label, values in ratios.items():
        print(f"{label}: median of {len(values)} ratios {statistics.median(values):.3f}")


if __name__ == "__main__":
    main()
