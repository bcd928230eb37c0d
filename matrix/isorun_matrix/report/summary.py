"""What every report shows: cells grouped by model and shape, the fastest that passes, and numbers as people read
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun.types import threads_in_words
from isorun_matrix.results.folder import LACKING

Cell = Mapping[str, Any]
NONE = "-"
_DISTURBED = 0.05  # the share of the time that a thread waited for a core, from which it is said
_NAMED = 3
_UNSTEADY = 1.25  # the same for the ends of a median's interval, the greater over the lesser


@dataclass(frozen=True)
class Group:
    """The cells of one model at one shape.

    Attributes:
        model, shape: the names that the spec has for them.
        cells: in the spec's order.
        fastest: the id of the cell with the least median latency among those whose outputs are right.
        tied: the ids of the others that are right whose medians cannot be told from that one: the intervals overlap.
    """

    model: str
    shape: str
    cells: tuple[Cell, ...]
    fastest: str | None
    tied: frozenset[str]

    @property
    def ties(self) -> list[Cell]:
        """The cells of :attr:`tied`."""
        return [cell for cell in self.cells if cell["id"] in self.tied]

    @property
    def title(self) -> str:
        """The model and the shape."""
        return f"{self.model}, {self.shape}"


def groups(document: Mapping[str, Any]) -> list[Group]:
    """The cells of a run by model and shape, in the spec's order."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in document["cells"]:
        found.setdefault((cell["model"], cell["shape"]), []).append(cell)
    return [Group(model, shape, tuple(cells), *_fastest(cells)) for (model, shape), cells in found.items()]


def _fastest(cells: list[Cell]) -> tuple[str | None, frozenset[str]]:
    """The id of the fastest cell that is right, and the ids of those that are tied with it."""
    passing = sorted(
        (median, cell["id"], interval(cell))
        for cell in cells
        if cell["status"] == "ok" and (median := p(cell, 50)) is not None
    )
    if not passing:
        return None, frozenset()
    (_, fastest, (_, greatest)), *others = passing
    return fastest, frozenset(name for _, name, (least, _) in others if least <= greatest)


def interval(cell: Cell) -> tuple[float, float]:
    """Where a cell's median would be found again; the median alone, of a run from before that was measured."""
    found = cell["latency_ms"]
    least, greatest = found.get("p50_interval") or (found["p50"], found["p50"])
    return least, greatest


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
    if leads(cell, group):
        return "ok, tied" if group.tied else "ok, fastest"
    return str(cell["status"])


def leads(cell: Cell, group: Group) -> bool:
    """Whether no cell that is right is faster than this one, as far as was measured."""
    return cell["id"] == group.fastest or cell["id"] in group.tied


def explanation(cell: Cell) -> str | None:
    """Why a cell is not ok, and what to do about it, in a line; ``None`` where it is."""
    if cell["status"] in ("ok", "pending"):
        return None
    text = " ".join(str(cell["reason"]).split())
    return f"{text}. {cell['remedy']}" if cell.get("remedy") else text


def explanations(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Why cells are not ok, each reason once, with all the cells that it holds for."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if (why := explanation(cell)) is not None:
            found.setdefault(why, []).append(cell)
    return found


def named(cells: Sequence[Cell], name: Callable[[Cell], str]) -> str:
    """The first few of some cells, and how many there are beside."""
    shown = [name(cell) for cell in cells[:_NAMED]]
    beside = len(cells) - len(shown)
    return ", ".join(shown) + (f" and {beside} more" if beside else "")


def short(cell: Cell) -> str:
    """What tells a cell from the others of its group."""
    return f"{cell['label']} {cell['precision']}"


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
    """What is worth knowing of what the cells of a group were fed, what of a cell's time was the device's, and which
    figures something disturbed."""
    fed = [note for cell in group.cells for note in cell.get("notes") or ()]
    kept = (f"{short(cell)}: kept from an earlier run; {cell['kept']}" for cell in group.cells if cell.get("kept"))
    return [*dict.fromkeys([*fed, *filter(None, map(_on_device, group.cells)), *kept]), *_disturbances(group)]


def disturbed(cell: Cell) -> bool:
    """Whether the threads of a cell often had no core while it was measured."""
    return (cell.get("waited") or 0) >= _DISTURBED


def _disturbances(group: Group) -> Iterator[str]:
    """The worst first: on a machine that does much else, they are all."""
    waited = sorted(filter(disturbed, group.cells), key=lambda cell: -cell["waited"])
    if waited:
        yield (
            f"disturbed: {named(waited, _waited)} of the time a thread waited for a core; other programs ran, or it "
            "has more threads than cores: measure again"
        )
    timed = [cell for cell in group.cells if p(cell, 50) is not None]
    unsteady = sorted((cell for cell in timed if _spread(cell) > _UNSTEADY), key=lambda cell: -_spread(cell))
    if unsteady:
        yield f"unsteady: the median of a sixth of the runs went from least to most: {named(unsteady, _ends)}"


def _waited(cell: Cell) -> str:
    return f"{short(cell)} ({cell['waited']:.0%})"


def _spread(cell: Cell) -> float:
    least, greatest = interval(cell)
    return greatest / least


def _ends(cell: Cell) -> str:
    least, greatest = interval(cell)
    return f"{short(cell)} ({number(least)} to {number(greatest)} ms)"


def _on_device(cell: Cell) -> str | None:
    found = cell.get("device_ms")  # a run from before it was measured has none
    if not found:
        return None
    times = f"p50 {number(found['p50'])} ms, p99 {number(found['p99'])} ms"
    return f"{short(cell)}: {times} on the device alone, by its own events"


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
        if p(cell, 50) is not None:
            least, greatest = interval(cell)
            yield "p50 of sixths", f"from {number(least)} to {number(greatest)} ms"
        yield "warm-up", f"{cell['warmup_runs']} runs"
        yield "memory", f"{number(cell['memory_mib']['before_load'])} MiB before the model was loaded"
        yield "notes", "; ".join(cell["latency_ms"]["notes"]) or "none"
    if load := cell.get("load_average"):
        yield "load average", f"{load[0]:.2f} when it started"
    if (waited := cell.get("waited")) is not None:
        yield "waited", f"{waited:.1%} of the time a thread waited for a core"


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
        clocks = f"{_known(each['clock_mhz'])} of {_known(each['most_clock_mhz'])} MHz{throttled}"
        memory = "?" if each["memory_mib"] is None else f"{each['memory_mib'] / 1024:.0f}"
        yield "GPU", f"{_known(each['name'])}, {memory} GiB, driver {_known(each['driver'])}, {clocks}"
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


def _known(value: object) -> object:
    return "?" if value is None else value
