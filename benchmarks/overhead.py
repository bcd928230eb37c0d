"""Per-call overhead of a session over the bare runtime: the same file, in one process, interleaved.

    python benchmarks/overhead.py [--rounds 20000] [--threads N] [--json FILE] [--worker]

The models have three inputs: an addition, where the call is all there is, and a narrow BERT of two layers, whose masks
and token ids are validated as well. The bare call is the fastest that each runtime documents for NumPy feeds:
``InferenceSession.run`` and ``InferRequest.infer(..., share_inputs=True)``.

``--worker`` measures the overhead of an isolated environment instead (overhead_worker.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import overhead_worker
from overhead_calls import RAW, RNG, addition, interleaved

import isorun
from isorun.graph.builders import encoder, encoder_config
from isorun.graph.io import files
from isorun.models import presets
from isorun.system.threads import usable_cores

_PAIRS = 6


def narrow_bert(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Two layers, 32 wide, on 1 x 128 tokens."""

    config = encoder_config.EncoderConfig(
        vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    path = folder / "bert.onnx"
    files.write(encoder.encoder(config, presets.SeededWeights(0), "bert"), path)
    feeds = {
        "input_ids": RNG.integers(0, 1000, (1, 128)),
        "attention_mask": np.ones((1, 128), np.int64),
        "token_type_ids": np.zeros((1, 128), np.int64),
    }
    return path, feeds


def measure(
    model: Path, feeds: dict[str, np.ndarray], backend: str, rounds: int, threads: int, cache: Path
) -> dict[str, Any]:
    """Medians in microseconds, interleaved, the first tenth thrown away.

    Two compiled copies of one file can differ by more than what is measured here, so there are several pairs, opened
    and run in the one order and the other.
    """
    pairs = [_pair(model, feeds, backend, rounds // _PAIRS, threads, cache, turn % 2 == 1) for turn in range(_PAIRS)]
    medians = {name: statistics.mean(pair[name] for pair in pairs) for name in ("raw", "isorun")}
    differences = [pair["isorun"] - pair["raw"] for pair in pairs]
    return {
        "model": model.stem,
        "backend": backend,
        **medians,
        "difference": statistics.mean(differences),
        "differences": differences,
    }


def _pair(
    model: Path, feeds: dict[str, np.ndarray], backend: str, rounds: int, threads: int, cache: Path, raw_first: bool
) -> dict[str, float]:
    path = isorun.Session(model, backend, threads=threads, cache_dir=cache)._model.lowered.path
    opened: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {}
    with contextlib.ExitStack() as stack:
        for name in ("raw", "isorun") if raw_first else ("isorun", "raw"):
            if name == "raw":
                opened[name] = RAW[backend](path, threads)
            else:
                session = stack.enter_context(isorun.Session(model, backend, threads=threads, cache_dir=cache))
                opened[name] = partial(session.run, None)
        return interleaved(opened, feeds, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        rows = overhead_worker.measure(arguments.rounds, arguments.threads)
    else:
        rows = measure_all(arguments.rounds, arguments.threads)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measure_all(rounds: int, threads: int) -> list[dict[str, Any]]:
    rows = []
    print(f"{'model':<12}{'backend':<12}{'raw us':>10}{'isorun us':>12}{'difference us':>16}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, feeds in (addition(folder), narrow_bert(folder)):
            for backend in RAW:
                row = measure(path, feeds, backend, rounds, threads, folder / "cache")
                rows.append(row)
                print(
                    f"{row['model']:<12}{row['backend']:<12}{row['raw']:>10.2f}"
                    f"{row['isorun']:>12.2f}{row['difference']:>16.2f}"
                    f"   ({min(row['differences']):.1f} to {max(row['differences']):.1f})"
                )
    return rows


if __name__ == "__main__":
    main()
