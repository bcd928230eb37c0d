"""An application of ONNX Runtime, moved to isorun by one line: python onnxruntime_application.py MODEL.onnx"""

from __future__ import annotations

import sys

import numpy as np

import isorun.compat as ort  # was: import onnxruntime as ort


def main(model: str) -> None:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {value.name: np.ones((2, 8), np.int64) for value in session.get_inputs()}
    for value, output in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        print(value.name, output.shape)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
