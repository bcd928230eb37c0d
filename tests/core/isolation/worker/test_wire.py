"""Frames of any size, received in any pieces."""

import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.isolation.worker import wire


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 4079, 4080, 4081, 9000]))
def test_frame_round_trip(kind, number, length):
    text = os.urandom(length)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, kind, number, text)
        assert wire.Receiver(theirs).receive() == (kind, number, text)


def test_frame_larger_than_the_socket_buffer(pair):
    ours, theirs = pair
    text = os.urandom(10_000_000)
    sender = threading.Thread(target=wire.send, args=(ours, 1, 2, text))
    sender.start()
    assert wire.Receiver(theirs).receive() == (1, 2, text)
    sender.join()


def test_frame_received_byte_by_byte(pair):
    ours, theirs = pair
    recorder, recorded = socket.socketpair()
    with recorder, recorded:
        wire.send(recorder, 3, 4, b"abc" * 2000)
        content = recorded.recv(10_000)

    def drip():
        for byte in content:
            ours.send(bytes([byte]))

    sender = threading.Thread(target=drip)
    sender.start()
    assert wire.Receiver(theirs).receive() == (3, 4, b"abc" * 2000)
    sender.join()


def test_calls_waited_at_intervals_and_goes_on(pair):
    ours, theirs = pair
    ours.settimeout(0.02)
    theirs.settimeout(0.02)
    waits: dict[str, int] = {"send": 0, "receive": 0}
    text = os.urandom(10_000_000)
    received = []

    def count(what):
        waits[what] += 1

    def receive():
        receiver = wire.Receiver(theirs, waited=lambda: count("receive"))
        while not waits["send"]:  # until the sender has filled the socket buffer
            time.sleep(0.01)
        received.append(receiver.receive())
        received.append(receiver.receive())

    thread = threading.Thread(target=receive)
    thread.start()
    wire.send(ours, 1, 2, text, waited=lambda: count("send"))
    while not waits["receive"]:
        time.sleep(0.01)
    wire.send(ours, 3, waited=lambda: count("send"))
    thread.join()
    assert received == [(1, 2, text), (3, 0, b"")]


def test_waited_may_raise(pair):
    ours, theirs = pair
    ours.settimeout(0.02)

    def fail():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        wire.Receiver(ours, waited=fail).receive()
    with pytest.raises(TimeoutError):
        wire.send(ours, 1, text=bytes(10_000_000), waited=fail)
    theirs.close()


def test_file_descriptor_comes_with_its_frame(pair, tmp_path):
    ours, theirs = pair
    incoming = wire.Receiver(theirs, files=True)
    with (tmp_path / "file").open("w") as file:
        wire.send(ours, 1, files=[file.fileno()])
    wire.send(ours, 2, text=b"without")
    assert incoming.receive() == (1, 0, b"")
    assert incoming.file is not None
    assert not os.get_inheritable(incoming.file)
    os.write(incoming.file, b"through the socket")
    os.close(incoming.file)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "through the socket"
    assert incoming.receive() == (2, 0, b"without")


@pytest.mark.parametrize("part", [b"", b"\0" * 5, b"\x09\0\0\0" + b"\0" * 12 + b"abc"])
def test_closed_by_the_other_side(pair, part):
    ours, theirs = pair
    ours.send(part)
    ours.close()
    with pytest.raises(wire.Closed):
        wire.Receiver(theirs).receive()
    with pytest.raises(wire.Closed):
        wire.send(theirs, 1)
    theirs.close()
    with pytest.raises(wire.Closed):
        wire.send(theirs, 1)
