"""Events that a child process of the doctor reports: lines of JSON among whatever a runtime prints."""

from __future__ import annotations

import json
from typing import Any

_MARK = "isorun doctor: "


def tell(**event: Any) -> None:
    """Report an event."""
    print(f"\n{_MARK}{json.dumps(event)}", flush=True)


def told(output: str) -> list[dict[str, Any]]:
    """The events in a child's output, in order."""
    return [json.loads(line.removeprefix(_MARK)) for line in output.split("\n") if line.startswith(_MARK)]
