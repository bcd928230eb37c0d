"""What a process of the doctor's tells it: lines of JSON, among whatever a runtime prints."""

from __future__ import annotations

import json
from typing import Any

_MARK = "isorun doctor: "


def tell(**event: Any) -> None:
    """Write down what happened."""
    print(f"\n{_MARK}{json.dumps(event)}", flush=True)


def told(printed: str) -> list[dict[str, Any]]:
    """What was written down, in order."""
    return [json.loads(line.removeprefix(_MARK)) for line in printed.split("\n") if line.startswith(_MARK)]
