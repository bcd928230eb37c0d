"""What every report shows: cells grouped by model and shape, the fastest that passes, and numbers as people read
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isorun.types import threads_in_words
from isorun_matrix.results import LACKING

Cell = Mapping[str, Any]
NONE = "-"


@dataclass(frozen=True)
class Group:
    """The cells of one model at one shape.

    Attributes:
        model, shape: the names that the spec has for them.
        cells: in the spec's order.
        fastest: the id of the cell with the least median latency among those whose outputs are right.
    """

    model: str
    shape: str
    cells: tuple[Cell, ...]
    fastest: str | None

    @property
    def title(self) -> str:
        """The model, the shape, and how many of the tokens are real."""
        return f"{self.model}, {self.shape}"


def groups(document: Mapping[str, Any]) -> list[Group]:
    """The cells of a run by model and shape, in the spec's order."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in document["cells"]:
        found.setdefault((cell["model"], cell["shape"]), []).append(cell)
    return [Group(model, shape, tuple(cells), _fastest(cells)) for (model, shape), cells in found.items()]


def _fastest(cells: list[Cell]) -> str | None:
    passing = [(median, cell["id"]) for cell in cells if cell["status"] == "ok" and (median := p(cell, 50)) is not None]
    return min(passing)[1] if passing else None


def p(cell: Cell, percentile: int) -> float | None:
    """A percentile of a cell's latency, in milliseconds."""
    found: float | None = (cell["latency_ms"] or {}).get(f"p{percentile}")
    return found


def measure(cell: Cell, group: str, name: str) -> float | None:
    """A figure of a cell, such as ``parity`` ``max_rel``; ``None`` where it has none."""
    found: float | None = (cell[group] or {}).get(name)
    return found


def number(value: float | None) -> str:
    """Three significant digits: 0.123, 4.56, 78.9, 12,300, 1.61M."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 999_500:
        return f"{number(value / 1e6)}M"
    rounded = f"{value:.2e}"
    magnitude = int(rounded.partition("e")[2])
    return f"{float(rounded):,.{max(0, 2 - magnitude)}f}"


def error(value: float | None) -> str:
    """An error by its size: 2.1e-06."""
    return NONE if value is None else "0" if value == 0 else f"{value:.1e}"


def cosine(value: float | None) -> str:
    """A cosine to six places, or how far it is from 1 where that takes more: 0.999742, 1 - 8e-13."""
    if value is None:
        return NONE
    return f"1 - {1 - value:.0e}" if 0 < 1 - value < 5e-7 else f"{value:.6f}"


def status(cell: Cell, group: Group) -> str:
    """A cell's status in a word or two."""
    return "ok, fastest" if cell["id"] == group.fastest else str(cell["status"])


def explanation(cell: Cell) -> str | None:
    """Why a cell is not ok, and what to do about it, in a line; ``None`` where it is."""
    if cell["status"] in ("ok", "pending"):
        return None
    text = " ".join(str(cell["reason"]).split())
    return f"{text}. {cell['remedy']}" if cell.get("remedy") else text


def tally(document: Mapping[str, Any]) -> str:
    """How many cells have which status: 10 ok, 2 unavailable."""
    counts: dict[str, int] = {}
    for cell in document["cells"]:
        counts[cell["status"]] = counts.get(cell["status"], 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def kind(cell: Cell) -> str:
    """Whether a status is good, bad, or that of a cell that cannot be had: ``ok``, ``bad``, ``lack``."""
    status = cell["status"]
    return "ok" if status == "ok" else "lack" if status in (*LACKING, "pending") else "bad"


def notes(group: Group) -> list[str]:
    """What is worth knowing of what the cells of a group were fed, and what of a cell's time was the device's."""
    fed = [note for cell in group.cells for note in cell.get("notes") or ()]
    return list(dict.fromkeys([*fed, *filter(None, map(_on_device, group.cells))]))


def _on_device(cell: Cell) -> str | None:
    found = cell.get("device_ms")  # a run from before it was measured has none
    if not found:
        return None
    times = f"p50 {number(found['p50'])} ms, p99 {number(found['p99'])} ms"
    return f"{cell['label']} {cell['precision']}: {times} on the device alone, by its own events"


def facts(cell: Cell) -> Iterator[tuple[str, str]]:
    """What is known of how a cell ran, as names and values."""
    if there := cell.get("environment"):  # a run from before there were any has none
        yield "environment", there
    if cell["options"]:
        yield "options", ", ".join(f"{name} {value}" for name, value in cell["options"].items())
    if ran := cell["provenance"]:
        yield "device", f"{ran['device']}, {threads_in_words(ran['threads'])}"
        yield "precision", ran["precision"]
        for place, operators in ran["operators"].items():
            yield f"on {place}", ", ".join(f"{count} {name}" for name, count in operators.items())
        yield "fused", ", ".join(f"{count} {name}" for name, count in ran["fused"].items()) or "none"
        yield "lowered to", f"{ran['dialect']} ({ran['cache']} in the cache)"
        yield "versions", ", ".join(f"{name} {version}" for name, version in ran["versions"].items())
        yield "model", ran["fingerprint"]
    if on_gpu := (cell["memory_mib"] or {}).get("gpu"):
        yield "device memory", f"{number(on_gpu)} MiB"
    if cell["latency_ms"]:
        yield "warm-up", f"{cell['warmup_runs']} runs"
        yield "memory", f"{number(cell['memory_mib']['before_load'])} MiB before the model was loaded"
        yield "notes", "; ".join(cell["latency_ms"]["notes"]) or "none"
    if load := cell.get("load_average"):
        yield "load average", f"{load[0]:.2f} when it started"


def environment(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The environment of a run as names and values, and the isolated ones in it."""
    found = document["environment"]
    cpu = found["cpu"]
    quota = "" if cpu["cgroup_quota"] is None else f", a quota of {cpu['cgroup_quota']:g}"
    yield "processor", f"{cpu['model']} ({cpu['architecture']})"
    yield "cores", f"{cpu['usable_cores']} usable of {cpu['cores']}{quota}"
    yield "features", ", ".join(cpu["flags"]) or "unknown"
    yield "governor", cpu["governor"] or "unknown"
    yield "memory", f"{found['memory_mib'] / 1024:.1f} GiB"
    for each in found.get("gpus", ()):  # a run from before they were noted has none
        throttled = f", throttled: {', '.join(each['throttled_by'])}" if each["throttled_by"] else ""
        clocks = f"{each['clock_mhz']} of {each['most_clock_mhz']} MHz{throttled}"
        yield "GPU", f"{each['name']}, {each['memory_mib'] / 1024:.0f} GiB, driver {each['driver']}, {clocks}"
    yield "load average", ", ".join(f"{load:.2f}" for load in found["load_average"]) + " when the run started"
    yield "system", f"{found['os']}, kernel {found['kernel']}"
    yield "python", found["python"]
    yield "packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    yield from isolated(document)
    for name, about in found.get("environments", {}).items():
        if "failure" not in about:
            versions = ", ".join(f"{package} {version}" for package, version in about["packages"].items())
            yield f"packages in {name}", versions


def isolated(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The isolated environments, each with what runs there and what that means for its figures."""
    for name, about in document["environment"].get("environments", {}).items():
        labels = dict.fromkeys(cell["label"] for cell in document["cells"] if cell.get("environment") == name)
        if "failure" not in about:  # else its cells say why
            what = (
                f"Python {about['python']}, a worker of {', '.join(labels)}; the way to it and back is in the latency"
            )
            yield f"environment {name}", what
