"""Computing what the cells of one workload are compared with: feeds and the reference's outputs, kept as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isorun import Session
from isorun.errors import UnsupportedModel
from isorun_matrix.execution import job_main as child
from isorun_matrix.measurement import feeds
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS


def reference(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A :class:`isorun_matrix.execution.plan.Workload`, with the model's ``path``, ``origin`` and wanted ``outputs``.

    Returns:
        ``path`` of the model and its wanted ``outputs``; ``cases``, the names of the feeds; ``tokens``, the real tokens
        in each; ``mask``, the input that is 0 at padding (``None`` where there is none); ``token_level``, the outputs
        that have a value for each token (``None`` to tell by shape); ``notes``; and the reference's ``provenance``.
    """
    with Session(job["path"], job["backend"], precision=job["precision"], outputs=job["outputs"]) as session:
        info = session.model_info
        cases, notes = feeds.make(job, info)
        for spec in session.get_outputs():
            if spec.dtype is None:
                raise UnsupportedModel(f"Output {spec.name!r} is {spec.type}; only tensors of numbers can be compared")
        names = [spec.name for spec in session.get_outputs()]
        outputs = {case: dict(zip(names, session.run(names, arrays), strict=True)) for case, arrays in cases.items()}
        feeds.save(folder / FEEDS, cases)
        feeds.save(folder / REFERENCE_OUTPUTS, outputs)
        return {
            "path": job["path"],
            "outputs": job["outputs"],
            "cases": list(cases),
            "tokens": {case: feeds.tokens(arrays, job, info.mask) for case, arrays in cases.items()},
            "mask": info.mask,
            "token_level": info.token_outputs,
            "notes": notes,
            "provenance": session.provenance.as_dict(),
        }


if __name__ == "__main__":
    child.main(reference)
