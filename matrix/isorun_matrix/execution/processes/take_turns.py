"""The processes of a round: each opens its session alone; then they measure in turns, and finish one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from isorun.system.process_usage import available_mib
from isorun_matrix.execution.processes.launch import Process

_MEMORY = 0.5  # of what is available, for sessions that are open at once


def take_turns(
    names: Sequence[str], start: Callable[[str], Process], shuffle: Callable[[Sequence[str], int], Sequence[str]]
) -> Iterator[tuple[str, Process]]:
    """Measure the cells of a round.

    Those whose sessions would take more than half of the memory together, or that use an accelerator, do not wait for
    each other: they have their turns before the next cell starts.

    Args:
        names: the cells, in the order in which they start.
        start: starts the process of a cell.
        shuffle: the order of a turn, from the cells that have it and its number.

    Yields:
        Each cell with its process, once that has ended.
    """
    left, most = [*names], _MEMORY * available_mib()
    while left:
        with ExitStack() as stack:
            waiting: dict[str, Process] = {}
            turns: dict[str, int] = {}
            memory: list[float] = []
            while left and sum(memory) + max(memory, default=0.0) <= most:
                name = left.pop(0)
                process = stack.enter_context(start(name))
                paused = process.proceed()
                if paused is None:
                    yield name, process
                    continue
                waiting[name], turns[name] = process, paused.turns
                memory.append(paused.resident_mib if paused.on_cpu else most)
            number = 0
            while having := [name for name, count in turns.items() if count]:
                for name in shuffle(having, number):
                    paused = waiting[name].proceed()
                    turns[name] = paused.turns if paused else 0
                    if paused is None:
                        yield name, waiting.pop(name)
                number += 1
            for name, process in waiting.items():
                while process.proceed():
                    pass
                yield name, process
