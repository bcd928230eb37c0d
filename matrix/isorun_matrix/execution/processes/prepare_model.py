"""Prepare a model before any cell opens it: build it if it is a preset, and lower it for every backend.

This is a process of its own so that its memory is released and a crash affects nothing else. Checkpoints are fetched
by the parent, which shows the progress.
"""

from __future__ import annotations

from pathlib import Path

from isorun.errors import UnsupportedModel
from isorun.models import lowering, presets
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun.types import DIALECTS
from isorun_matrix.execution.processes import main
from isorun_matrix.jobs import ModelJob, PreparedModel


def prepare(job: ModelJob, *_: object) -> PreparedModel:
    """Prepare a model, whose checkpoint is a folder."""
    cache = Cache()
    origin = presets.build(job.preset, job.seed, cache) if job.preset else Path(job.path or job.checkpoint or "")
    source = models.open_model(origin, cache, job.outputs)
    for dialects in job.dialects:
        if dialects[0] not in DIALECTS:  # a plugin's variant, which its cells lower to themselves
            continue
        try:
            lowering.ModelGraphs(source, cache).lower(tuple(dialects))
        except UnsupportedModel as error:  # each cell of that backend reports it
            print(error, flush=True)
    return PreparedModel(str(source.path), str(origin), source.outputs, source.fingerprint)


if __name__ == "__main__":
    main.main(ModelJob, prepare)
