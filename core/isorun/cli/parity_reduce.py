"""``isorun parity --reduce``: the smallest part of a model that a backend computes wrongly, for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from isorun.cli import console, models
from isorun.errors import ParityError
from isorun.reduction import Reduction, Request, reduce
from isorun.types import ModelInfo


def run(
    request: Request,
    info: ModelInfo,
    cases: Mapping[str, Mapping[str, np.ndarray]],
    output: Path,
    reads: Sequence[Path],
    *,
    as_json: bool,
) -> None:
    """Reduce a model, and print the result.

    Args:
        cases: feeds by kind of mask.
        output: the ONNX file to write; those of feeds and of outputs have its name.

    Raises:
        ParityError: the backend computes the model wrongly.
    """
    output = models.check_output(output, reads)
    for end in ("feeds", "expected"):
        models.check_output(output.with_name(f"{output.stem}.{end}.npz"), reads)
    backend = request.backend
    masks = {case: info.attended(feeds) for case, feeds in cases.items()}
    with console.working(f"Reducing {request.model}") as show:
        reduction = reduce(request, cases, masks, output, show)
    if as_json:
        console.json_out({**asdict(request), "reduction": reduction and asdict(reduction)})
    elif reduction is None:
        print(f"{backend} computes the same as {request.against}: there is nothing to reduce")
    else:
        _show(backend, reduction, output)
    if reduction is not None:
        raise ParityError(f"{backend} {reduction.kind}: {output} has what is left of the model")


def _show(backend: str, reduction: Reduction, output: Path) -> None:
    count = len(reduction.nodes)
    print(f"{backend} {reduction.kind} with {count} of {reduction.of} nodes: {', '.join(reduction.nodes)}")
    print(f"  {reduction.reason}")
    for fault in reduction.known:
        print(f"  known to isorun, whose sessions work around it: {fault}")
    print(f"\nWritten: {output}, {output.stem}.feeds.npz, {output.stem}.expected.npz ({reduction.trials} trials)")
