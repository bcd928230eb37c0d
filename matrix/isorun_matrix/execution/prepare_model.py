"""Making a model ready once, before any cell opens it: found or built, and lowered for every backend.

In the child, so that the memory this takes is given back and what crashes here crashes alone. Fetching a
checkpoint is the parent's, which has the terminal to show progress on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isorun.errors import UnsupportedModel
from isorun.models import presets
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun_matrix.execution import job_main as child


def prepare(job: dict[str, Any], _: Path) -> dict[str, Any]:
    """A :class:`isorun_matrix.execution.plan.Preparation`, its checkpoint a folder.

    Returns:
        ``path`` of the ONNX file, ``origin`` (the file or folder beside which a tokenizer would be), the wanted
        ``outputs``, and ``fingerprint``.
    """
    cache = Cache()
    if job["preset"] is not None:
        origin = presets.build(job["preset"], job["seed"], cache)
    else:
        origin = Path(job["path"] or job["checkpoint"])
    source = models.open_model(origin, cache, job["outputs"])
    for dialects in job["dialects"]:
        try:
            models.lower(source, tuple(dialects), cache)
        except UnsupportedModel as error:  # the cells of that backend say so, each for itself
            print(error, flush=True)
    found = {"path": str(source.path), "origin": str(origin), "fingerprint": source.fingerprint}
    return found | {"outputs": source.outputs}


if __name__ == "__main__":
    child.main(prepare)
