"""State that a process passes on to its children: restored after each check, so that no child inherits a change.

A backend that changes its process's umask in ``compile()`` would otherwise change it for the process whose state the
suite compares, before the comparison begins. Linux only; elsewhere, the variables and the working directory.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_OWN = ("PYTEST_CURRENT_TEST",)  # pytest's, which changes during a check
_lasting: dict[str, None] = {}


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def _set_variables(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys() - set(_OWN):
        del os.environ[name]
    os.environ.update(variables)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _limits() -> list[tuple[int, int]]:
    import resource

    return [resource.getrlimit(limit) for limit in range(16)]


def _set_limits(limits: list[tuple[int, int]]) -> None:
    import resource

    for limit, values in enumerate(limits):
        if resource.getrlimit(limit) != values:
            resource.setrlimit(limit, values)


def _ignored() -> frozenset[int]:
    return frozenset(number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN)


def _signals() -> tuple[Any, frozenset[int]]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()), _ignored()


def _set_signals(state: tuple[Any, frozenset[int]]) -> None:
    """From the main thread only, which runs the checks."""
    mask, ignored = state
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in _ignored() ^ ignored:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


_PORTABLE: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "environment variables": (_variables, _set_variables),
    "the working directory": (os.getcwd, os.chdir),
}
_LINUX: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the file mode mask": (_umask, os.umask),
    "resource limits": (_limits, _set_limits),
    "the priority": (
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda priority: os.setpriority(os.PRIO_PROCESS, 0, priority),
    ),
    "CPU affinity": (lambda: os.sched_getaffinity(0), lambda cores: os.sched_setaffinity(0, cores)),
    "signal masks or handlers of the process": (
        _signals,
        _set_signals,
    ),
}
_STATE = {**_PORTABLE, **(_LINUX if sys.platform == "linux" else {})}
"""What to call it, as :data:`isorun_conformance.process_state.STATE` does, and how to read and to set it."""


@contextmanager
def restored() -> Iterator[None]:
    """Restore at the end what the process had at the beginning."""
    before = {what: read() for what, (read, _) in _STATE.items()}
    try:
        yield
    finally:
        for what, (read, write) in _STATE.items():
            if _read(read) != before[what]:
                try:
                    write(before[what])
                except (OSError, ValueError):  # a limit or a priority that only root may set back
                    _lasting[what] = None


def _read(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except OSError:  # the working directory was removed
        return None


def lasting() -> list[str]:
    """What could not be restored in this process, which every child inherits."""
    return list(_lasting)
