"""What backends compute on Arm, for every kind of mask: run by ``tests/test_aarch64.py`` under qemu.

    python on_aarch64.py FOLDER BACKEND PRECISION

It prints JSON: the precision and padding that were reported, and the difference from ``reference`` as a part of
its norm; and whether the rows of a batch have the bits that they have alone.
"""

import json
import platform
import sys
from pathlib import Path

import numpy as np

import isorun
import small_bert
from isorun.parity.samples import MASKS

LENGTH = 24


def main(folder: Path, backend: str, precision: str) -> None:
    path = folder / "model.onnx"
    if not path.exists():
        small_bert.write(path, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    rng = np.random.default_rng(0)
    batches = [small_bert.feeds(make(4, LENGTH, rng)) for make in MASKS.values()]
    cache = folder / "cache"
    with isorun.Session(path, "reference", cache_dir=cache) as session:
        expected = [session.run(None, feeds) for feeds in batches]
    settings = {"calibration": batches} if precision == "int8" else {}
    with isorun.Session(path, backend, precision=precision, cache_dir=cache, **settings) as session:
        results = [session.run(None, feeds) for feeds in batches]
        provenance = session.provenance
    pairs = [pair for result, right in zip(results, expected, strict=True) for pair in zip(result, right, strict=True)]
    with isorun.Session(path, backend, precision=precision, padding="keep", cache_dir=cache, **settings) as session:
        whole = session.run(None, batches[0])
        alone = [
            session.run(None, {name: feed[row : row + 1] for name, feed in batches[0].items()}) for row in range(4)
        ]
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "precision": provenance.precision,
                "removed": provenance.details["padding"]["removed"],
                "error": max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs),
                "same_bits": all(
                    np.array_equal(together[row], part[0])
                    for row, parts in enumerate(alone)
                    for together, part in zip(whole, parts, strict=True)
                ),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
