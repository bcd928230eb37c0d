"""How often the matrix is wrong: the coverage of its intervals, and its verdicts on cells that are the same.

    python benchmarks/coverage.py [--trials 400]
    python benchmarks/coverage.py --real 20 [--load]

The first command draws medians of processes from distributions: every round shifts all cells alike, each process adds
its own error, in ``one noisy`` the first cell ten times that of the others, in ``bursts`` a neighbour slows down
every third process by up to a half, and in ``two speeds`` every second process is slower by a fifth. It prints, for
each number of rounds, the rate at which the interval of a median covers the true one; for runs of four identical
cells, the rates at which all intervals of ratios cover 1, of any verdict ``slower`` and of a sole ``fastest``; and the
rate of ``slower`` for a cell that is 8 % slower. Then, where sessions differ by 3 % in common and 1 % for each cell,
the rate of any change between two identical runs, with the number of runs from which the differences are known.

The second command runs a spec with four identical backends (ort-cpu) again and again, and ``ab`` with a backend that is
8 % slower by hand. It counts the verdicts, and the pairs of identical runs between which ``compare`` sees a change.
With ``--load``, another program computes for two seconds of every six.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.measurement.statistics.latencies import rank_interval
from isorun_matrix.report import summary
from isorun_matrix.report.comparison.compare import compare
from isorun_matrix.results.folder import RunFolder

CELLS, SLOWER, ROUND = 4, 1.08, 0.1  # ROUND: the standard deviation that all processes of a round share
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _one_noisy(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    logs = rng.normal(0, 0.01, size)
    logs[0] *= 10 if len(size) > 1 else 1
    return logs


NOISES: dict[str, Noise] = {
    "normal 1 %": lambda rng, size: rng.normal(0, 0.01, size),
    "normal 3 %": lambda rng, size: rng.normal(0, 0.03, size),
    "heavy tails 2 %": lambda rng, size: 0.02 / 1.3 * rng.standard_t(3, size),
    "one noisy 1 %": _one_noisy,
    "two speeds": lambda rng, size: rng.normal(0, 0.01, size) + (rng.random(size) < 1 / 2) * 0.2,
    "bursts": lambda rng, size: rng.normal(0, 0.01, size) + (rng.random(size) < 1 / 3) * rng.uniform(0, 0.4, size),
}
SLOW = """
import time
from isorun_backends.onnxruntime.cpu import OrtCpu


class Slower(OrtCpu):
    def compile(self, model, config):
        made = super().compile(model, config)
        run = made.run

        def slower(names, feeds):
            start = time.perf_counter()
            outputs = run(names, feeds)
            end = start + (time.perf_counter() - start) * 1.08
            while time.perf_counter() < end:
                pass
            return outputs

        made.run = slower
        return made
"""
SPEC = """
models: {bert: {preset: bert-3l}}
shapes: [1x32]
reference: {backend: ort-cpu, precision: fp32}
backends: [%s]
"""


def medians(rng: np.random.Generator, noise: Noise, rounds: int, slower: float = 1.0) -> list[dict[int, float]]:
    """The medians of four cells and a control in each round; the last cell is ``slower``."""
    logs = noise(rng, (CELLS + 1, rounds)) + rng.normal(0, ROUND, rounds)
    logs[CELLS - 1] += np.log(slower)
    return [dict(enumerate(np.exp(row))) for row in logs]


def family_of(cells: list[dict[int, float]]) -> tuple[int, list[verdicts.Ratio | None]]:
    """The fastest cell and how each cell compares with it; the last of ``cells`` is the control of the first."""
    family = verdicts.Family(cells, len(cells) - 1, verdicts.self_ratio(cells[0], cells[-1]) or 0.0)
    best = int(np.argmin([float(np.median([*cell.values()])) for cell in cells[:-1]]))
    return best, [None if index == best else family.ratio(index, best) for index in range(len(cells) - 1)]


def synthetic(trials: int) -> None:
    """Rates over drawn runs."""
    rng = np.random.default_rng(0)
    print("noise            rounds  p50 covers (stated)  all ratios cover  any slower  sole fastest  8 % found")
    for name, noise in NOISES.items():
        for rounds in (3, 5, 12):
            truth = float(np.median(noise(rng, (200_000,))))
            held, level, covered = 0, 0.0, 0
            same, detected = [], 0
            for _ in range(trials):
                interval = rank_interval(noise(rng, (rounds,)))
                assert interval is not None
                held += interval.low <= truth <= interval.high
                level = interval.level
                _, ratios = family_of(medians(rng, noise, rounds))
                covered += all(ratio is None or ratio.interval.low <= 1 <= ratio.interval.high for ratio in ratios)
                same.append([ratio and ratio.verdict for ratio in ratios])
                _, (*_, slow) = family_of(medians(rng, noise, rounds, SLOWER))
                detected += slow is not None and slow.verdict == "slower"
            print(
                f"{name:<16} {rounds:>6} {held / trials:>11.1%} ({level:.1%})"
                f" {covered / trials:>15.1%}"
                f" {np.mean(['slower' in statuses for statuses in same]):>11.1%}"
                f" {np.mean([statuses.count('slower') == CELLS - 1 for statuses in same]):>13.1%}"
                f" {detected / trials:>10.1%}",
                flush=True,
            )
    print("runs  cells  two identical runs: any change")
    for runs in (3, 5, 10):
        for cells in (1, 4, 16):
            wrong = 0
            for _ in range(trials):
                logs = rng.normal(0, 0.03, (runs + 1, 1)) + rng.normal(0, 0.01, (runs + 1, cells))
                sessions = verdicts.Sessions.of([dict(enumerate(np.exp(run))) for run in logs[:-1]])
                wrong += bool(np.any(np.abs(logs[-1] - logs[0]) > sessions.explains(cells)))
            print(f"{runs:>4} {cells:>6} {wrong / trials:>10.1%}")


def real(runs: int, *, load: bool) -> None:
    """Count verdicts of real runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "isorun_slower.py").write_text(SLOW)
        info = folder / "isorun_slower-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: isorun-slower\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[isorun.backends]\nslower = isorun_slower:Slower\n")
        same = ", ".join(f"{{name: ort-cpu, label: c{index}}}" for index in range(CELLS))
        (folder / "same.yaml").write_text(SPEC % same)
        (folder / "a.yaml").write_text(SPEC % "{name: ort-cpu, label: x}")
        (folder / "b.yaml").write_text(SPEC % "{name: slower, label: x}")
        burner = multiprocessing.Process(target=_burn, daemon=True)
        if load:
            burner.start()
        counts: dict[str, int] = dict.fromkeys(("sole fastest", "any slower", "8 % found by ab", "not found"), 0)
        for number in range(runs):
            _isorun(folder, "run", "same.yaml", "--out", f"same-{number}")
            (group,) = summary.groups(RunFolder(folder / f"same-{number}").run().cells)
            verdicts_now = [group.verdict(cell) for cell in group.cells]
            counts["any slower"] += "slower" in verdicts_now
            counts["sole fastest"] += "fastest" in verdicts_now
            start = time.monotonic()
            table = _isorun(folder, "ab", "a.yaml", "b.yaml", "--out", f"ab-{number}")
            counts["8 % found by ab" if "slower" in table else "not found"] += 1
            about = {"ab seconds": round(time.monotonic() - start), "load": os.getloadavg()[0]}
            print(json.dumps({"runs": number + 1, **counts, **about}), flush=True)
        if load:
            burner.terminate()
        loaded = [RunFolder(folder / f"same-{number}").run() for number in range(runs)]
        changed = dict.fromkeys(("alone", "with history"), 0)
        for pair in combinations(loaded, 2):
            history = [run for run in loaded if run not in pair]
            for name, known in (("alone", []), ("with history", history)):
                cells = compare(pair, known).cells
                changed[name] += any(cell.verdict(1) in ("slower", "faster") for cell in cells)
        print(json.dumps({"pairs of identical runs": runs * (runs - 1) // 2, "with any change": changed}))


def _isorun(folder: Path, *words: str) -> str:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "isorun", "matrix", *words]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: a pair has too few rounds for a verdict
        raise SystemExit(done.stderr)
    return done.stdout


def _burn() -> None:
    while True:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass
        time.sleep(4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--real", type=int, default=0, metavar="RUNS")
    parser.add_argument("--load", action="store_true")
    arguments = parser.parse_args()
    real(arguments.real, load=arguments.load) if arguments.real else synthetic(arguments.trials)
