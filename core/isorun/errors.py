"""Every error that isorun raises deliberately.

::

    IsorunError
    ├── BackendNotFound       no backend of that name is installed
    ├── BackendUnavailable    installed, but does not support the request here: a reason and a remedy
    ├── BackendFailed         the runtime failed; its own error is the cause
    │   ├── WorkerTimeout     a call to an isolated backend exceeded the session's timeout
    │   └── WorkerDied        the worker process of an isolated backend ended: how, and the end of its log
    ├── EnvironmentNotFound   no isolated environment of that name exists
    ├── EnvironmentBroken     an isolated environment cannot be created or used
    ├── InvalidModel          not a model, a damaged one, or one that refers to files outside its folder
    │   └── TokenizerError    a model without a tokenizer that can be read: what to install or to convert
    ├── UnsupportedModel      a valid model with operators that the backend lacks
    ├── InvalidFeeds          names, types, shapes or values that the model does not accept
    ├── InvalidArgument       an argument that no backend knows, or one that has no effect
    │   ├── InvalidOption     a key or value of ``options`` that the backend does not accept
    │   └── InvalidType       an argument of the wrong type
    ├── SessionClosed         the session is closed
    ├── QueueFull             as many requests as allowed are waiting already
    ├── DeadlineExceeded      a request was not answered in time
    ├── ParityError           outputs differ by more than the tolerance
    ├── FetchFailed           a checkpoint cannot be downloaded, or failed verification
    ├── SpecError             a matrix spec with an invalid key or value
    └── CacheError            the cache folder cannot be used

A message says what is wrong, why, and what to do. :func:`isorun.plugin.backend.runtime_errors` converts a vendor's
exception into the most specific of these, with the original as ``__cause__``; from another process the cause is a
:class:`isorun.isolation.worker.failures.RemoteError` with its text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class IsorunError(Exception):
    """Base class of every error that isorun raises deliberately."""

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: process pools break on an exception that cannot be reconstructed."""
        return _restore, (type(self), self.args, self.__dict__)


def message_of(error: BaseException) -> str:
    """The message of an exception, whose own method may fail: that of a plugin."""
    try:
        return str(error)
    except Exception as why:  # noqa: BLE001 - whatever it is, something must be said of the first one
        return f"its message cannot be read, which raises {type(why).__name__}"


def in_words(error: BaseException) -> str:
    """The type and the message of an exception."""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")


def _restore(cls: type[IsorunError], args: tuple[object, ...], attributes: dict[str, object]) -> IsorunError:
    error = cls.__new__(cls, *args)  # __init__ would format the message a second time
    error.__dict__.update(attributes)
    return error


_BACKENDS_OF_ONNX_RUNTIME = {
    **dict.fromkeys(("CPUExecutionProvider", "onnxruntime", "ort", "cpu"), "ort-cpu"),
    **dict.fromkeys(("CUDAExecutionProvider", "onnxruntime-gpu", "cuda"), "ort-cuda"),
    "TensorrtExecutionProvider": "ort-tensorrt",
    "OpenVINOExecutionProvider": "ort-openvino",
}
"""isorun's names of what people know by other names."""


class BackendNotFound(IsorunError):
    """No backend of that name is installed."""

    def __init__(self, name: str, installed: Sequence[str], where: str = "") -> None:
        self.name = name
        self.installed: tuple[str, ...] = tuple(installed)
        meant = _BACKENDS_OF_ONNX_RUNTIME.get(name)
        suggestion = f"; did you mean {meant!r}?" if meant else did_you_mean(name, installed)
        problem = "'auto' is not a backend" if name == "auto" else f"No backend {name!r} is installed{where}"
        super().__init__(f"{problem}{suggestion}")


class BackendUnavailable(IsorunError):
    """An installed backend does not support the request on this machine.

    Attributes:
        backend: the backend's name; of several that were requested, all names.
        reason: why not.
        remedy: what to do about it, a command where there is one.
    """

    def __init__(self, backend: str | Sequence[str], reason: str, remedy: str) -> None:
        names = [backend] if isinstance(backend, str) else backend
        self.backend: str = " or ".join(names)
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"Backend {' or '.join(map(repr, names))} cannot be used: {reason}. {remedy}")


class BackendFailed(IsorunError):
    """The runtime behind a backend failed; ``__cause__`` is its own error."""


class WorkerDied(BackendFailed):
    """The worker process of an isolated backend ended. The next call starts another.

    Attributes:
        how: how it ended, in a sentence.
        signal: the name of the signal that killed it, such as ``SIGSEGV``; else ``None``.
        exit_code: its exit code, if it exited.
        log: the end of its output.
    """

    def __init__(self, message: str, *, signal: str | None = None, exit_code: int | None = None, log: str = "") -> None:
        self.how = message
        self.signal = signal
        self.exit_code = exit_code
        self.log = log
        super().__init__(f"{message}. Its log ends:\n{log}" if log else f"{message}. Its log is empty")


class WorkerTimeout(BackendFailed):
    """A call to an isolated backend exceeded the session's ``timeout``.

    The worker is killed, since a runtime cannot be interrupted; other calls in flight raise :class:`WorkerDied`, and
    the next call starts another worker.

    Attributes:
        seconds: the timeout; ``None`` if the worker was busy with another request, and continues.
        log: the end of the worker's output.
    """

    def __init__(self, message: str, *, seconds: float | None = None, log: str = "") -> None:
        self.seconds = seconds
        self.log = log
        super().__init__(f"{message}. Its log ends:\n{log}" if log else message)


class EnvironmentNotFound(IsorunError):
    """No isolated environment of that name exists."""

    def __init__(self, name: str, environments: Sequence[str]) -> None:
        self.name = name
        known = did_you_mean(name, environments)
        super().__init__(
            f"There is no environment {name!r}{known}. Create it with: isorun env create {name} --install ..."
        )


class EnvironmentBroken(IsorunError):
    """An isolated environment cannot be created or used."""


class InvalidModel(IsorunError):
    """Not a model, a damaged model, or one that refers to files outside its folder."""


class TokenizerError(InvalidModel):
    """A model has no tokenizer that can be read; the message says what to install or to convert."""


class UnsupportedModel(IsorunError):
    """A valid model with operators that the backend lacks.

    Attributes:
        operators: the operators, as ``domain.Name`` or ``Name``; empty where the runtime does not say.
    """

    def __init__(self, message: str, operators: Iterable[str] = ()) -> None:
        self.operators: tuple[str, ...] = tuple(operators)
        super().__init__(message)


class InvalidFeeds(IsorunError, ValueError):
    """Feeds or output names that the model does not accept."""


class InvalidArgument(IsorunError, ValueError):
    """An argument with a value that no backend knows, or one that has no effect."""


class InvalidOption(InvalidArgument):
    """A key or value of ``options`` that the backend does not accept.

    Attributes:
        backend: the backend's name.
        key: the option.
    """

    def __init__(self, backend: str, key: str, problem: str) -> None:
        self.backend = backend
        self.key = key
        super().__init__(f"{backend}: {problem}")


class InvalidType(InvalidArgument, TypeError):
    """An argument of the wrong type."""


class SessionClosed(IsorunError):
    """The session is closed, or belongs to the process that this one was forked from."""


class QueueFull(IsorunError):
    """More rows would wait for a session than its ``max_queue`` allows.

    Attributes:
        limit: how many may wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"At most {limit} rows may wait. Try again later, or raise max_queue (HTTP: 429 with Retry-After)"
        )


class DeadlineExceeded(IsorunError, TimeoutError):
    """A request was not answered in time. If it was still waiting, it does not run."""


class ParityError(IsorunError):
    """Outputs differ from the reference by more than the tolerance."""


class FetchFailed(IsorunError):
    """A checkpoint could not be downloaded or failed verification. Nothing is kept."""


class SpecError(IsorunError):
    """A matrix spec with an invalid key or value."""


class CacheError(IsorunError):
    """The cache folder cannot be used."""


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name closest in spelling, ignoring case; ``None`` if none is close."""
    from difflib import get_close_matches

    spelt = {candidate.casefold(): candidate for candidate in known}
    near = get_close_matches(str(name).casefold(), spelt, n=1, cutoff=0.6)
    return spelt[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known name, and all known names."""
    names = sorted(known)
    if near := nearest(name, names):
        return f"; did you mean {near!r}? (known: {', '.join(names)})"
    return f"; known: {', '.join(names)}" if names else "; none are known"


def near_file(
    path: Path, others: Iterable[str] = (), *, suffixes: Collection[str] = (), folders_with: Collection[str] = ()
) -> str:
    """The end of a message about a missing file: the closest name in its folder or among ``others``.

    Args:
        path: the missing file.
        others: names that may stand in its place.
        suffixes: of the files that are expected; that of ``path`` by default.
        folders_with: names of files; a folder with one of them is expected too.
    """
    allowed = suffixes or {path.suffix}

    def expected(sibling: Path) -> bool:
        if sibling.is_dir():
            return any((sibling / name).is_file() for name in folders_with)
        return sibling.suffix in allowed and sibling.is_file()

    try:
        beside = [sibling.name for sibling in path.parent.iterdir() if sibling != path and expected(sibling)]
    except (OSError, ValueError):  # the folder is missing, too, or cannot be read
        beside = []
    near = nearest(path.name, [*others, *beside])
    if near is None or nearest(path.stem, [type(path)(near).stem]) is None:  # alike in their suffixes alone
        return ""
    return f"; did you mean {path.parent / near if near in beside else near}?"
