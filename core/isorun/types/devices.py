"""The names of devices, such as ``cpu``, ``gpu.1`` and ``hetero:gpu,cpu``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

DEVICES = ("cpu", "gpu", "gpu.N", "cuda", "npu", "auto", "auto:DEVICES", "hetero:DEVICES")
"""The forms of devices that backends run on: ``N`` is an index from 0, ``DEVICES`` a list of others with commas."""

_LIST = ":DEVICES"
_INDEX = re.compile(r"\.(0|[1-9]\d*)$")


def canonical(requested: str, supported: Collection[str]) -> str | None:
    """A device in lower case, without spaces and repetitions; ``None`` if it has none of the supported forms."""
    kind, colon, members = str(requested).strip().lower().partition(":")
    if not colon:
        return kind if kind in supported or _INDEX.sub(".N", kind) in supported else None
    single = [form for form in supported if not form.endswith(_LIST) and form + _LIST not in supported]
    names = [canonical(member, single) for member in members.split(",")]
    if kind + _LIST not in supported or None in names:
        return None
    return f"{kind}:{','.join(dict.fromkeys(filter(None, names)))}"


def kinds(device: str) -> tuple[str, ...]:
    """What a canonical name stands for, without indices: ``gpu`` and ``cpu`` of ``hetero:gpu.1,cpu``."""
    return tuple(_INDEX.sub("", name) for name in device.rpartition(":")[2].split(","))


def examples(supported: Collection[str]) -> Iterator[str]:
    """A device of each form that names no particular unit."""
    first = next(iter(supported))
    for form in supported:
        if not form.endswith(".N"):
            yield form.replace("DEVICES", first)
