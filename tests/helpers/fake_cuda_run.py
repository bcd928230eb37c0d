"""Run a model on ``ort-cuda`` over fakes of CUDA, as a job in JSON says, and print what the provider did."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import isorun
from isorun.errors import IsorunError

LOG = Path(os.environ["FAKE_CUDA_LOG"])


def seen(start):
    """Counts of the logged details by kind, from a position on."""
    found: dict[str, Counter[str]] = {}
    for line in LOG.read_text()[start:].splitlines():
        what, detail, _, captured = line.split("\t")
        found.setdefault(f"{what} captured" if captured else what, Counter())[detail] += 1
    return {what: dict(details) for what, details in found.items()}


def position():
    return len(LOG.read_text())


def main():
    job = json.loads(sys.argv[1])
    found = {}
    with isorun.Session(
        job["model"],
        backend="ort-cuda",
        precision=job["precision"],
        padding=job["padding"],
        options=job["options"],
        outputs=job["outputs"],
        cache_dir=job["cache"],
    ) as session:
        for name, rows in job["masks"].items():
            mask = np.array(rows)
            feeds = {"input_ids": mask + 1, "attention_mask": mask, "token_type_ids": 0 * mask}
            start = position()
            try:
                session.run(None, feeds)
                first, start = seen(start), position()
                session.run(None, feeds)
                found[name] = {"first": first, "again": seen(start), "times": []}
                for runs in (1, 11):
                    start = position()
                    assert session.device_times(feeds, runs).shape == (runs,)
                    found[name]["times"].append(seen(start))
            except IsorunError as error:
                found[name] = {"error": str(error)}
        found["provenance"] = session.provenance.as_dict()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
