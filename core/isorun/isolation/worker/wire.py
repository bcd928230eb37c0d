"""Frames over a socket: a header of fixed size, then text in JSON. Nothing is ever unpickled.

=========  =========  ==========  ================================================================================
direction  kind       number      text and file descriptor
=========  =========  ==========  ================================================================================
worker     READY      its pid     sent once: the versions of Python and NumPy
to worker  CHANNEL                a socket: serve it too (the only request without a reply)
           ASK                    a method of :data:`isorun.isolation.worker.server.METHODS` and its arguments
           MAP        FEEDS or    a shared memory segment and its size: use it for feeds or results from now on
                      RESULTS
           RUN                    run an executable; write the outputs to the results segment
           STORE                  write the outputs of the last run to the new results segment
reply      DONE                   the result; for RUN and STORE the description of the outputs
           NEED       bytes       the outputs do not fit the results segment: MAP a larger one, then STORE
           FAILED                 an exception (:mod:`isorun.isolation.worker.failures`)
=========  =========  ==========  ================================================================================
"""

from __future__ import annotations

import array
import errno
import socket
import struct
from collections.abc import Callable, Sequence

from isorun.system import portable

READY, CHANNEL, ASK, MAP, RUN, STORE, DONE, NEED, FAILED = range(9)
FEEDS, RESULTS = range(2)

_HEADER = struct.Struct("<IIQ")  # length of the text in bytes, kind, number
_FILES = socket.CMSG_SPACE(array.array("i").itemsize) if portable.CAN_PASS_DESCRIPTORS else 0
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)  # the last: closed by another thread


class Closed(Exception):
    """The other side is gone."""


def _give_up() -> None:
    """The default for ``waited``."""
    raise TimeoutError


def send(
    channel: socket.socket,
    kind: int,
    number: int = 0,
    text: bytes = b"",
    files: Sequence[int] = (),
    waited: Callable[[], None] = _give_up,
) -> None:
    """Send one frame, with at most one file descriptor.

    Args:
        waited: called each time the socket has blocked as long as its timeout; it may raise.

    Raises:
        Closed: the other side is gone.
    """
    frame = memoryview(_HEADER.pack(len(text), kind, number) + text)
    try:
        while frame:
            try:
                sent = socket.send_fds(channel, [frame], files) if files else channel.send(frame)
            except TimeoutError:
                waited()
                continue
            frame, files = frame[sent:], ()
    except OSError as error:
        if error.errno in _GONE:
            raise Closed from error
        raise


class Receiver:
    """Receives frames from a socket whose other side sends one at a time.

    Args:
        files: whether frames may come with a file descriptor.
        waited: called each time the socket has blocked as long as its timeout; it may raise.

    Attributes:
        file: the file descriptor that came with the last frame; whoever takes it closes it.
    """

    def __init__(self, channel: socket.socket, *, files: bool = False, waited: Callable[[], None] = _give_up) -> None:
        self._channel = channel
        self._waited = waited
        self._files = files
        self.file: int | None = None

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame: kind, number, text. Raises :class:`Closed` if the other side is gone."""
        try:
            length, kind, number = _HEADER.unpack(self._exactly(_HEADER.size, self._files))
            return kind, number, bytes(self._exactly(length))
        except OSError as error:
            if error.errno in _GONE:
                raise Closed from error
            raise

    def _exactly(self, size: int, files: bool = False) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            try:
                received = self._with_file(rest) if files else self._channel.recv_into(rest)
            except TimeoutError:
                self._waited()
                continue
            if not received:
                raise Closed
            rest, files = rest[received:], False
        return content

    def _with_file(self, into: memoryview) -> int:
        received, ancillary, _, _ = self._channel.recvmsg_into([into], _FILES, portable.RECEIVE_PRIVATELY)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (self.file,) = array.array("i", data)
        return received
