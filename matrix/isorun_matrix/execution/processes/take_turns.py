"""The processes of a round: each opens its session alone; then they measure in turns, and finish one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from isorun.system.process_usage import available_mib
from isorun_matrix.execution.processes.launch import Process

_MEMORY = 0.5  # of what is available, for sessions that are open at once


def take_turns(
    names: Sequence[str], start: Callable[[str], Process], shuffle: Callable[[Sequence[str], int], Sequence[str]]
) -> Iterator[tuple[str, Process]]:
    """Measure the cells of a round, and yield each with its process, once that has ended.

    A cell that uses an accelerator, which would idle between turns, is measured at once. When the open sessions take
    half of the memory, they have their turns and finish before the next cell starts (on Linux; elsewhere the memory is
    not known).

    Args:
        names: the cells, in the order in which they start.
        shuffle: the order of a turn, from the cells that have it and its number.
    """
    available = available_mib()
    pending, budget = [*names], math.inf if available is None else _MEMORY * available
    while pending:
        with ExitStack() as stack:
            paused: dict[str, Process] = {}
            turns: dict[str, int] = {}
            memory: list[float] = []
            while pending and sum(memory) + max(memory, default=0.0) <= budget:
                name = pending.pop(0)
                process = stack.enter_context(start(name))
                state = process.proceed()
                if state is None:
                    yield name, process
                elif not state.on_cpu:
                    yield name, _finished(process)
                else:
                    paused[name], turns[name] = process, state.turns
                    memory.append(state.resident_mib or 0.0)
            most = max(turns.values(), default=0)
            for turn in range(most):
                having = [name for name in paused if _has_turn(turn, turns[name], most)]
                for name in shuffle(having, turn):
                    if paused[name].proceed() is None:
                        yield name, paused.pop(name)
            for name, process in paused.items():
                yield name, _finished(process)


def _has_turn(turn: int, turns: int, most: int) -> bool:
    """Whether a cell with fewer turns than another has one of them now: they are spread evenly."""
    return turn * turns // most < (turn + 1) * turns // most


def _finished(process: Process) -> Process:
    while process.proceed():
        pass
    return process
