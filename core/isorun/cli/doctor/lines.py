"""Events that a child process of the doctor reports: lines of JSON among whatever a runtime prints."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any, TextIO

_MARK = "isorun doctor: "


@cache
def _out() -> TextIO:
    """Standard output as it was at the first event: a plugin may close it or put something else in its place."""
    return os.fdopen(os.dup(1), "w")


def tell(**event: Any) -> None:
    """Report an event."""
    print(f"\n{_MARK}{json.dumps(event)}", file=_out(), flush=True)


def told(output: str) -> list[dict[str, Any]]:
    """The events in a child's output, in order."""
    return [json.loads(line.removeprefix(_MARK)) for line in output.split("\n") if line.startswith(_MARK)]
