"""Classify the lines of many files on a Ray cluster: python classify_with_ray.py INPUT_FOLDER OUTPUT_FOLDER [MODEL]

Needs isorun[ray]. Each actor opens the model once; Ray starts as many as the machines have room for.
"""

from __future__ import annotations

import sys

import numpy as np
import ray

import isorun


class Classify:
    """Adds the class of each text, and its score, to a batch."""

    def __init__(self, model: str) -> None:
        self.classifier = isorun.Classifier(model, threads=1)  # num_cpus of an actor, below

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        best = [classes[0] for classes in self.classifier.classify(batch["text"])]
        return {
            **batch,
            "label": np.array([top.label for top in best]),
            "score": np.array([top.score for top in best], np.float32),
        }


def main(source: str, target: str, model: str = "distilbert-base-uncased-finetuned-sst-2-english") -> None:
    rows = ray.data.read_text(source).map_batches(
        Classify,
        fn_constructor_args=[model],
        batch_size=1024,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=64),
    )
    rows.write_json(target)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
