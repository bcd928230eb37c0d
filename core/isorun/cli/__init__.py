"""The command line, ``isorun``: one file per command.

Commands raise; :func:`main` turns an error into a message and an exit code.

====  ==========================================================================
code  meaning
====  ==========================================================================
0     success
1     a check failed, such as a comparison of outputs
2     wrong usage or invalid input
3     a backend or environment is unavailable, failed, or does not support the model
130   interrupted with Ctrl-C; 143 by SIGTERM, 129 by SIGHUP
====  ==========================================================================
"""

from __future__ import annotations

import errno
import faulthandler
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    EnvironmentBroken,
    IsorunError,
    ParityError,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from isorun.plugin.registry import Entry

CHECK_FAILED = 1
BAD_INPUT = 2
BACKEND_TROUBLE = 3
INTERRUPTED = 130
TROUBLES = (BackendUnavailable, BackendFailed, UnsupportedModel, EnvironmentBroken)
"""The errors with the exit code :data:`BACKEND_TROUBLE`."""
_PIPE_CLOSED = 141  # as a shell counts a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    _open_streams()
    if argv is not None:
        return _main(list(argv))
    from isorun.cli import signals

    _separate_results()
    faulthandler.enable(2, all_threads=False)  # a library that ends this process is found by its caller
    with signals.interrupting() as interruption:
        code = _main(sys.argv[1:])
    return 128 + interruption.number if code == INTERRUPTED else code


def _main(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    usual = warnings.formatwarning
    if not debug:
        warnings.formatwarning = lambda message, *_: f"isorun: {message}\n"  # without the source line
    try:
        with _only_results() if "--json" in arguments else nullcontext():
            code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has exited, as in `| head`
        _drop_stdout()
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (IsorunError, OSError, MemoryError) as error:
        if debug:
            raise
        print(f"isorun: {_described(error)}", file=sys.stderr)
        return _code(error)
    finally:
        warnings.formatwarning = usual
    if code == INTERRUPTED:
        print("isorun: interrupted", file=sys.stderr)
    return code


def _open_streams() -> None:
    """Replace a closed standard stream (``>&-``), which is ``None`` in Python, by one that discards its input.

    Otherwise, what is printed to a closed standard error goes to standard output. Characters that the encoding of
    standard output lacks are escaped there, as they are in standard error.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _separate_results() -> None:
    """Send what a runtime's libraries print to standard error, so that standard output has the results alone.

    QNN's, for one, print to the file descriptor as they are loaded.
    """
    try:
        if (sys.stdout.fileno(), sys.stderr.fileno()) != (1, 2):
            return
    except (OSError, ValueError):  # a stream without a file descriptor
        return
    usual = sys.stdout
    usual.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    buffering = 1 if usual.line_buffering or getattr(usual, "write_through", False) else -1
    sys.stdout = open(results, "w", buffering, usual.encoding, usual.errors)  # noqa: PTH123, SIM115 - until the end


@contextmanager
def _only_results() -> Iterator[None]:
    """Keep everything but JSON off standard output, what plugins print included: it goes to standard error.

    :func:`isorun.cli.console.json_out` gets the stream that standard output was.
    """
    from isorun.cli import console

    stream = console.results = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
        stream.flush()
    finally:
        sys.stdout, console.results = stream, None


def _check_import(entry: Entry) -> None:
    from isorun.plugin import listing

    listing.check_import(entry)


def _run(arguments: list[str]) -> int:
    from isorun.plugin import registry

    try:
        from isorun.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        raise IsorunError(
            f"The command line needs the package {error.name!r}. Install it with `pip install 'isorun[cli]'`"
        ) from error
    try:
        with registry.checked_imports(_check_import):
            app.command().main(args=arguments, prog_name="isorun")
    except SystemExit as exit_:
        if isinstance(exit_.__context__, BrokenPipeError):  # which click and rich turn into exit code 1
            raise exit_.__context__ from None
        return exit_.code if isinstance(exit_.code, int) else 0
    return 0


def _code(error: Exception) -> int:
    if isinstance(error, ParityError):
        return CHECK_FAILED
    if isinstance(error, TROUBLES):
        return BACKEND_TROUBLE
    return BAD_INPUT


def _described(error: Exception) -> str:
    """An error's message; where the system does not say what is full, with the candidates."""
    if isinstance(error, MemoryError):
        return f"Out of memory: {str(error) or 'an allocation failed'}"
    full = os.strerror(errno.ENOSPC)
    if not isinstance(error, OSError) or error.filename is not None or error.strerror != full:
        return str(error)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
        return f"Cannot write to standard output: {error.strerror}"
    free = {folder: shutil.disk_usage(folder).free for folder in (Path.cwd(), Path(tempfile.gettempdir()))}
    places = ", ".join(f"{folder} has {count // 2**20} MiB" for folder, count in free.items())
    return f"{error.strerror}: {places}. Free some, or choose other folders with $TMPDIR and $ISORUN_CACHE_DIR"


def _drop_stdout() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):  # standard output has no file descriptor
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    finally:
        os.close(nowhere)
