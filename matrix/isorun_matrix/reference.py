"""Computing what the cells of one workload are compared with: feeds and the reference's outputs, kept as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isorun import Session
from isorun.errors import UnsupportedModel
from isorun.parity import token_level_outputs
from isorun_matrix import child, feeds

FEEDS = "feeds.npz"
OUTPUTS = "outputs.npz"


def reference(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A :class:`isorun_matrix.plan.Workload`, with the model's ``path``, ``origin`` and wanted ``outputs``.

    Returns:
        ``path`` of the model and its wanted ``outputs``; ``cases``, the names of the feeds; ``tokens``, the real tokens
        in each; ``token_level``, the outputs that have a value for each token (``None`` to tell by shape); ``notes``;
        and the reference's ``provenance``.
    """
    with Session(job["path"], job["backend"], precision=job["precision"], outputs=job["outputs"]) as session:
        cases, notes = feeds.make(job, session.get_inputs())
        for spec in session.get_outputs():
            if spec.dtype is None:
                raise UnsupportedModel(f"Output {spec.name!r} is {spec.type}; only tensors of numbers can be compared")
        names = [spec.name for spec in session.get_outputs()]
        outputs = {case: dict(zip(names, session.run(names, arrays), strict=True)) for case, arrays in cases.items()}
        feeds.save(folder / FEEDS, cases)
        feeds.save(folder / OUTPUTS, outputs)
        level = token_level_outputs(session.get_inputs(), session.get_outputs())
        return {
            "path": job["path"],
            "outputs": job["outputs"],
            "cases": list(cases),
            "tokens": {case: feeds.tokens(arrays, job) for case, arrays in cases.items()},
            "token_level": None if level is None else sorted(level),
            "notes": notes,
            "provenance": session.provenance.as_dict(),
        }


if __name__ == "__main__":
    child.main(reference)
