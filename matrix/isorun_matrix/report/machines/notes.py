"""Notes on the machines of a report: what they are, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isorun_matrix.report import remarks
from isorun_matrix.report.machines.side_by_side import Machine, marks

_LEGEND = {
    "m": "the model differs",
    "f": "the feeds differ",
    "s": "the software differs",
    "o": "the device, the threads or the options in the spec differ",
}


def notes(machines: Sequence[Machine]) -> Iterator[str]:
    for machine in machines:
        environment, entry = machine.run.environment, machine.entry
        parts = [
            environment.cpu.model,
            f"{environment.cpu.usable_cores} cores",
            *(gpu.name or "a GPU" for gpu in environment.gpus),
        ]
        parts += [] if entry.cost is None else [f"{entry.cost:g} an hour"]
        counted = [cell.result.energy for cell in machine.run.cells if cell.result is not None and cell.result.energy]
        if counted:
            parts.append(f"energy measured ({', '.join(counted[0].counters)})")
        elif entry.watts is not None:
            parts.append(f"{entry.watts:g} W, declared")
        yield f"{machine.name}: {', '.join(parts)}; {environment.python}; {remarks.tally(machine.run.cells)}"
    for machine in machines:
        named = [name for name, entry in machine.run.spec.machines.items() if entry.cost or entry.watts]
        if named and machine.name not in machine.run.spec.machines:
            yield (
                f"{machine.name} is not a machine of its spec, so its cost and watts are unknown. "
                f"Merge its run as NAME=DIR; known: {', '.join(named)}"
            )
    hosts = [machine.run.environment.host for machine in machines]
    for index, machine in enumerate(machines):
        if hosts[index] in hosts[:index]:
            yield f"{machine.name} and {machines[hosts.index(hosts[index])].name} are the same host"
    seen: dict[str, list[str]] = {}
    for machine in machines:
        for title, group in machine.groups.items():
            for cell in group.cells:
                first = next((candidate for candidate in machines if candidate.correct_cell(title, cell.name)), machine)
                for mark in marks(first, machine, title, cell.name):
                    seen.setdefault(mark, []).append(f"{machine.name} from {first.name}")
    for mark, whose in sorted(seen.items()):
        yield f"({mark}): {_LEGEND[mark]}: {', '.join(dict.fromkeys(whose))}{_explained(mark, machines)}"


def _explained(mark: str, machines: Sequence[Machine]) -> str:
    """The versions that differ; where the feeds differ, the remedy."""
    if mark == "f":
        return ". Set the same seed in the specs, or run all machines with --ray"
    if mark != "s":
        return ""
    versions = {
        machine.name: {"python": machine.run.environment.python, **machine.run.environment.packages}
        for machine in machines
    }
    names = dict.fromkeys(package for packages in versions.values() for package in packages)
    differing = [
        f"{package} " + ", ".join(f"{packages.get(package, 'none')} on {name}" for name, packages in versions.items())
        for package in names
        if len({packages.get(package) for packages in versions.values()}) > 1
    ]
    return f" ({'; '.join(differing)})" if differing else ""
