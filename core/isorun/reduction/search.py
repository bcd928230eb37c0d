"""The search for the smallest part: this side of the child processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isorun.errors import BackendFailed
from isorun.reduction.trial import ENDS
from isorun.system.subprocesses import ask

WRITTEN = "written"
"""The folder of the files to return, in the search's folder."""
SECONDS = 300
"""How long a single candidate may take; one that takes longer ends its process."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to reduce.

    Attributes:
        model: the path of an ONNX file.
        backend, against: the backend that is tested, and the reference.
        precision: of the tested backend.
        threads: the threads of a run; ``None`` for the default.
    """

    model: str
    backend: str
    against: str
    precision: str = "fp32"
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest part that still fails.

    Attributes:
        kind: ``"differs"`` (in values), ``"returns other shapes"``, ``"fails"`` (an error) or ``"ends the process"`` (a
            crash, or no end).
        reason: in what it differs, or the error's message.
        nodes: the operators that are left, in order.
        of: how many nodes the model has.
        trials: how many candidates were run.
        known: the known faults of the runtime that it is, which sessions work around.
    """

    kind: str
    reason: str
    nodes: tuple[str, ...]
    of: int
    trials: int
    known: tuple[str, ...]


def reduce(
    request: Request,
    cases: Mapping[str, Mapping[str, np.ndarray]],
    masks: Mapping[str, np.ndarray | None],
    output: Path,
    at: Callable[[str], object] = lambda _: None,
) -> Reduction | None:
    """Reduce a model to the smallest part that a backend computes differently from the reference.

    Args:
        request: the model and the backends.
        cases: feeds for the model, by name; the first with which it fails is used.
        masks: the mask of each case: values where it is 0 are not compared.
        output: the ONNX file to write: what the runtime gets. ``NAME.feeds.npz`` and ``NAME.expected.npz`` are written
            beside it.
        at: called with what is being done.

    Returns:
        What is left; ``None`` if the model does not fail with any of the cases.

    Raises:
        IsorunError: the reference fails, or the file cannot be written.
        BackendFailed: the search itself failed.
    """
    outcomes: dict[str, tuple[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="isorun-reduce-") as name:
        folder = Path(name)
        for index, (case, feeds) in enumerate(cases.items()):
            mask = masks.get(case)
            arrays: dict[str, Any] = {f"{key}:": array for key, array in feeds.items()}
            if mask is not None:
                arrays[":"] = mask
            np.savez(folder / f"case-{index}.npz", **arrays)
        while True:
            progress = {"outcomes": outcomes, "stem": output.stem}
            (folder / "request.json").write_text(json.dumps({**asdict(request), **progress}))
            at(f"testing parts of the model ({len(outcomes)} so far)")
            events, exit_ = ask("isorun.reduction.child", str(folder))
            outcomes |= {event["tried"]: (event["kind"], event["reason"]) for event in events if "tried" in event}
            for event in events:
                if "unchanged" in event:
                    return None
                if "error" in event:
                    raise BackendFailed(event["error"])
                if "result" in event:
                    for path in (folder / WRITTEN).iterdir():
                        shutil.copyfile(path, output.with_name(path.name))
                    result = event["result"]
                    lists = {key: tuple(result[key]) for key in ("nodes", "known")}
                    return Reduction(**{**result, **lists}, trials=len(outcomes))
            begun = [event["begin"] for event in events if "begin" in event]
            if exit_.ok or not begun or begun[-1] in outcomes:
                raise BackendFailed(f"The search for the smallest part {exit_.how}: {exit_.last_line}")
            outcomes[begun[-1]] = (ENDS, f"the process {exit_.how}")
