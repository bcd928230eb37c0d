"""Every error that isorun raises on purpose.

::

    IsorunError
    ├── BackendNotFound       no backend of that name is installed
    ├── BackendUnavailable    installed, but what was asked for cannot be had here: a reason and a remedy
    ├── InvalidOption         a key or value of ``options`` that the backend does not accept
    ├── BackendFailed         the runtime itself failed; its own error is the cause
    │   └── WorkerDied        the process that an isolated backend runs in is gone: how, and the end of its log
    ├── EnvironmentNotFound   no isolated environment of that name was made
    ├── EnvironmentBroken     an isolated environment cannot be made or used
    ├── InvalidModel          not a model, a damaged one, or one that refers to files that it may not
    ├── UnsupportedModel      a sound model with operators that the backend does not have
    ├── InvalidFeeds          names, types, shapes or values that the model does not take
    ├── ParityError           outputs differ by more than the tolerance
    ├── FetchFailed           a checkpoint cannot be had, or is not what was due
    ├── SpecError             a matrix spec with a key or value that means nothing
    └── CacheError            the cache folder cannot be used

A message says what happened, why, and what to do. A vendor's exception becomes the most specific of these
where the backend is entered (:func:`isorun.plugin.backend.runtime_errors`), and stays reachable as ``__cause__``; where
the backend runs in another process, as the text of a :class:`isorun.isolation.worker.failures.RemoteError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class IsorunError(Exception):
    """The root of every error that isorun raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """From one process to another: pools of processes break at an exception that cannot be made again."""
        return _again, (type(self), self.args, self.__dict__)


def _again(cls: type[IsorunError], args: tuple[object, ...], attributes: dict[str, object]) -> IsorunError:
    error = cls.__new__(cls, *args)  # its own __init__ would put the message together anew
    error.__dict__.update(attributes)
    return error


class BackendNotFound(IsorunError):
    """No backend of that name is installed."""

    def __init__(self, name: str, installed: Sequence[str], where: str = "") -> None:
        self.name = name
        self.installed = tuple(installed)
        super().__init__(f"There is no backend {name!r}{where}{did_you_mean(name, installed)}")


class BackendUnavailable(IsorunError):
    """A backend that is installed cannot do here what was asked of it.

    Attributes:
        backend: the backend's name.
        reason: why it cannot.
        remedy: what to do about it, a command where there is one.
    """

    def __init__(self, backend: str, reason: str, remedy: str) -> None:
        self.backend = backend
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"Backend {backend!r} is not available: {reason}. {remedy}")


class InvalidOption(IsorunError, ValueError):
    """A key or value of ``options`` that the backend does not accept.

    Attributes:
        backend: the backend's name.
        key: the option.
    """

    def __init__(self, backend: str, key: str, problem: str) -> None:
        self.backend = backend
        self.key = key
        super().__init__(f"{backend}: {problem}")


class BackendFailed(IsorunError):
    """The runtime behind a backend failed; ``__cause__`` is its own error."""


class WorkerDied(BackendFailed):
    """The process that an isolated backend runs in is gone. The next call starts another.

    Attributes:
        how: how it ended, in a sentence.
        signal: the name of the signal that killed it, such as ``SIGSEGV``; else ``None``.
        exit_code: what it exited with, where it did.
        log: the end of what it printed.
    """

    def __init__(self, message: str, *, signal: str | None = None, exit_code: int | None = None, log: str = "") -> None:
        self.how = message
        self.signal = signal
        self.exit_code = exit_code
        self.log = log
        super().__init__(f"{message}. Its log ends:\n{log}" if log else f"{message}. Its log is empty")


class EnvironmentNotFound(IsorunError):
    """No isolated environment of that name was made."""

    def __init__(self, name: str, made: Sequence[str]) -> None:
        self.name = name
        known = did_you_mean(name, made)
        super().__init__(f"There is no environment {name!r}{known}. Make it: isorun env create {name} --install ...")


class EnvironmentBroken(IsorunError):
    """An isolated environment cannot be made or used."""


class InvalidModel(IsorunError):
    """Not a model, a damaged model, or one that refers to files that it may not."""


class UnsupportedModel(IsorunError):
    """A sound model with operators that the backend has no implementation of.

    Attributes:
        operators: the operators, as ``domain.Name`` or ``Name``; empty where the runtime does not say.
    """

    def __init__(self, message: str, operators: Iterable[str] = ()) -> None:
        self.operators = tuple(operators)
        super().__init__(message)


class InvalidFeeds(IsorunError, ValueError):
    """Feeds, or names of outputs, that the model does not take."""


class ParityError(IsorunError):
    """Outputs differ from the reference by more than the tolerance."""


class FetchFailed(IsorunError):
    """A checkpoint could not be had, or what came is not what was due. Nothing of it is kept."""


class SpecError(IsorunError):
    """A matrix spec that says something isorun does not understand."""


class CacheError(IsorunError):
    """The cache folder cannot be used."""


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is spelt most like an unknown one, whatever its case; ``None`` where none is like it."""
    from difflib import get_close_matches

    spelt = {each.casefold(): each for each in known}
    near = get_close_matches(str(name).casefold(), spelt, n=1, cutoff=0.6)
    return spelt[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: its nearest match, else all that there is."""
    names = sorted(known)
    if near := nearest(name, names):
        return f"; did you mean {near!r}? (known: {', '.join(names)})"
    return f"; known: {', '.join(names)}" if names else ", nor any other"


def near_file(path: Path, others: Iterable[str] = ()) -> str:
    """The end of a message about a file that is not there: what lies in its folder, or else is known by such a name."""
    beside = [each.name for each in path.parent.iterdir() if each != path] if path.parent.is_dir() else []
    near = nearest(path.name, [*others, *beside])
    if near is None:
        return ""
    return f"; did you mean {path.parent / near if near in beside else near}?"
