"""Choose a precision on your texts, and pin it: python pin_precision.py TEXTS.txt [MODEL]

The first run measures, and writes what it chose to precision.json. Keep that file with your program: with it, every
machine runs the same precision, or raises an error where it cannot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import isorun

PINNED = Path("precision.json")


def main(texts: str, model: str = "all-MiniLM-L6-v2") -> None:
    lines = [line for line in Path(texts).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not PINNED.exists():
        # The fastest one that keeps, by its 95 % interval, nine of each text's ten nearest neighbours.
        with isorun.Embedder(model, backend="openvino", precision="auto", quality=0.9, calibration=lines) as embedder:
            measured = embedder.session.provenance.details["precision"]
            PINNED.write_text(json.dumps({"backend": "openvino", "precision": measured["chosen"]}))
    pinned = json.loads(PINNED.read_text())
    if pinned["precision"] == "int8":
        pinned["calibration"] = lines  # the same texts give the same weights
    with isorun.Embedder(model, **pinned) as embedder:
        print(embedder.embed(lines).shape, "in", embedder.session.provenance.precision)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
