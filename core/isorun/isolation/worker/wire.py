"""Frames over a socket: a header of fixed size, then text in JSON. Nothing is ever unpickled.

====  =========  ==========  ==============================================================
to    kind       number      text
====  =========  ==========  ==============================================================
it    READY      its pid     once, from the worker: what it is
      CHANNEL                with a socket: serve this one too (the only one without an answer)
      ASK                    a request of :data:`isorun.isolation.worker.server.ANSWERS`
      MAP        a segment   with its memory: know it by this number; segments to forget
      RUN        a segment   run on feeds; put the results into the segment
      STORE      a segment   the results that did not fit belong here
back  DONE                   the answer; for RUN and STORE the results
      NEED       bytes       the results did not fit: STORE them where there is room
      FAILED                 an exception (:mod:`isorun.isolation.worker.failures`)
====  =========  ==========  ==============================================================
"""

from __future__ import annotations

import array
import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence

READY, CHANNEL, ASK, MAP, RUN, STORE, DONE, NEED, FAILED = range(9)

_HEADER = struct.Struct("<IIQ")  # length of the text in bytes, kind, number
_USUAL = 4096  # a frame of a few tensors fits, and is received in one call
_MOMENT = 60e-6  # seconds
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)  # the last: closed by another thread
_FILES = socket.CMSG_SPACE(array.array("i").itemsize)


class Closed(Exception):
    """The other side is gone."""


def _go_on() -> None:
    """Wait on."""


def wake_after(channel: socket.socket, seconds: float) -> None:
    """Have a socket call ``waited`` (see :func:`send`, :class:`Receiver`) whenever it has blocked for so long.

    By an option of the socket: a timeout of Python's costs a call of ``poll`` for each call.
    """
    whole = int(seconds)
    interval = struct.pack("@ll", whole, round((seconds - whole) * 1e6))
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


def send(
    channel: socket.socket,
    kind: int,
    number: int = 0,
    text: bytes = b"",
    files: Sequence[int] = (),
    waited: Callable[[], None] = _go_on,
) -> None:
    """Send one frame, with at most one open file.

    Args:
        channel: the socket.
        kind, number, text, files: what to send.
        waited: called each time that the socket has blocked as long as :func:`wake_after` said; it may raise.

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
    """Takes frames from a socket whose other side sends one at a time.

    Args:
        channel: the socket.
        files: whether open files may come with a frame.
        eager: whether to stay awake for a moment for the next frame, where the one before came in such a moment: to be
            woken takes longer than to answer. (Only for the side at which nothing computes meanwhile.)
        waited: called each time that the socket has blocked as long as :func:`wake_after` said; it may raise.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        files: bool = False,
        eager: bool = False,
        waited: Callable[[], None] = _go_on,
    ) -> None:
        self._channel = channel
        self._waited = waited
        self._files = files
        self._buffer = bytearray(_USUAL)
        self._view = memoryview(self._buffer)
        self._eager = eager
        self._awake = False
        self.file: int | None = None
        """The file that came with the last frame; whoever takes it closes it."""

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame: kind, number, text.

        Raises:
            Closed: the other side is gone.
        """
        try:
            if self._eager:
                self._await()
            there = self._first()
            while there < _HEADER.size:
                there += self._more(self._view[there:])
            length, kind, number = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if end <= _USUAL:
                while there < end:
                    there += self._more(self._view[there:end])
                return kind, number, bytes(self._view[_HEADER.size : end])
            text = bytearray(length)
            text[: there - _HEADER.size] = self._view[_HEADER.size : there]
            rest = memoryview(text)[there - _HEADER.size :]
            while rest:
                rest = rest[self._more(rest) :]
            return kind, number, bytes(text)
        except OSError as error:
            if error.errno in _GONE:
                raise Closed from error
            raise

    def _await(self) -> None:
        began = time.perf_counter()
        came = False
        while self._awake and not came and time.perf_counter() - began < _MOMENT:
            try:
                self._channel.recv_into(self._view, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                came = True
            except BlockingIOError:
                pass
        if not came:
            self._channel.recv_into(self._view, 1, socket.MSG_PEEK)
        self._awake = time.perf_counter() - began < _MOMENT

    def _first(self) -> int:
        if not self._files:
            return self._more(self._view)
        there, ancillary, _, _ = self._channel.recvmsg_into([self._view], _FILES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (self.file,) = array.array("i", data)
        if not there:
            raise Closed
        return there

    def _more(self, into: memoryview) -> int:
        while True:
            try:
                there = self._channel.recv_into(into)
            except BlockingIOError:
                self._waited()
                continue
            if not there:
                raise Closed
            return there
