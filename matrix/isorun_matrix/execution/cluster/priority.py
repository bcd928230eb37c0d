"""Undoing what Ray does to the processes of a node: their priority and their variables."""

from __future__ import annotations

import os
from pathlib import Path

_OOM = "oom_score_adj"


def adopt(process: int) -> None:
    """Give this thread the niceness, and this process the score for the OOM killer, of another process. Raises
    ``OSError`` if this user may not."""
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, process))
    score = Path(f"/proc/{process}/{_OOM}").read_text(encoding="utf-8")
    Path(f"/proc/self/{_OOM}").write_text(score, encoding="utf-8")


def variables(process: int) -> dict[str, str]:
    """The variables that a node was started with, or ``OSError``: Ray sets OMP_NUM_THREADS and hides GPUs from its
    workers, and preloads an allocator into its own processes."""
    content = Path(f"/proc/{process}/environ").read_bytes()
    variables = dict(os.fsdecode(item).partition("=")[::2] for item in content.split(b"\0") if b"=" in item)
    kept = [
        library for library in variables.pop("LD_PRELOAD", "").split(":") if library and "/ray/core/" not in library
    ]
    return variables | ({"LD_PRELOAD": ":".join(kept)} if kept else {})
