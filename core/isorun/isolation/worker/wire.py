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
_BUFFER_SIZE = 4096  # a frame that describes a few tensors fits, and is received in one call
_FILES = socket.CMSG_SPACE(array.array("i").itemsize) if portable.CAN_PASS_DESCRIPTORS else 0
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)  # the last: closed by another thread


class Closed(Exception):
    """The other side is gone."""


def _keep_waiting() -> None:
    """The default for ``waited``."""


def wake_after(channel: socket.socket, seconds: float) -> None:
    """Have a socket call ``waited`` (see :func:`send`, :class:`Receiver`) whenever it has blocked for so many seconds.

    Uses socket options: a timeout of Python's costs a ``poll`` for each call.
    """
    whole, fraction = divmod(max(round(seconds * 1e6), 1), 1_000_000)  # 0 would be no limit
    interval = struct.pack("@ll", whole, fraction)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


def send(
    channel: socket.socket,
    kind: int,
    number: int = 0,
    text: bytes = b"",
    files: Sequence[int] = (),
    waited: Callable[[], None] = _keep_waiting,
) -> None:
    """Send one frame, with at most one file descriptor.

    Args:
        channel: the socket.
        kind, number, text, files: what to send.
        waited: called each time the socket has blocked as long as :func:`wake_after` set; it may raise.

    Raises:
        Closed: the other side is gone.
    """
    frame = memoryview(_HEADER.pack(len(text), kind, number) + text)
    try:
        while frame:
            try:
                sent = socket.send_fds(channel, [frame], files) if files else channel.send(frame)
            except BlockingIOError:
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
        channel: the socket.
        files: whether frames may come with a file descriptor.
        waited: called each time the socket has blocked as long as :func:`wake_after` set; it may raise.

    Attributes:
        file: the file descriptor that came with the last frame; whoever takes it closes it.
    """

    def __init__(
        self, channel: socket.socket, *, files: bool = False, waited: Callable[[], None] = _keep_waiting
    ) -> None:
        self._channel = channel
        self._waited = waited
        self._files = files
        self._buffer = bytearray(_BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self.file: int | None = None

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame: kind, number, text.

        Raises:
            Closed: the other side is gone.
        """
        try:
            received = self._first()
            while received < _HEADER.size:
                received += self._more(self._view[received:])
            length, kind, number = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if end <= _BUFFER_SIZE:
                while received < end:
                    received += self._more(self._view[received:end])
                return kind, number, bytes(self._view[_HEADER.size : end])
            text = bytearray(length)
            text[: received - _HEADER.size] = self._view[_HEADER.size : received]
            rest = memoryview(text)[received - _HEADER.size :]
            while rest:
                rest = rest[self._more(rest) :]
            return kind, number, bytes(text)
        except OSError as error:
            if error.errno in _GONE:
                raise Closed from error
            raise

    def _first(self) -> int:
        if not self._files:
            return self._more(self._view)
        received, ancillary, _, _ = self._channel.recvmsg_into([self._view], _FILES, portable.RECEIVE_PRIVATELY)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (self.file,) = array.array("i", data)
        if not received:
            raise Closed
        return received

    def _more(self, into: memoryview) -> int:
        while True:
            try:
                received = self._channel.recv_into(into)
            except BlockingIOError:
                self._waited()
                continue
            if not received:
                raise Closed
            return received
