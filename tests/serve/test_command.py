"""The command in its own process or the tests': what it refuses, and what it does before it serves."""

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import programs
from isorun.errors import BackendFailed
from isorun.session.session import Session


def test_prepares_the_cache_and_ends(isorun: Any, folders: dict[str, Path]) -> None:
    ran = isorun("serve", folders["embedder"], "--backend", "ort-cpu", "--no-measure", "--prepare")
    assert (ran.code, ran.out) == (0, "")


FREEZES = """
import gc, os, signal, sys
from isorun.cli import main

def freeze():
    print("frozen")
    os.kill(os.getpid(), int(sys.argv[2]))

gc.freeze = freeze
sys.exit(main(["serve", sys.argv[1], "--backend=ort-cpu", "--port=0", "--no-warmup", "--drain=0"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_garbage_collector_leaves_out_what_is_open(folders: dict[str, Path], number: signal.Signals) -> None:
    printed = programs.output(sys.executable, "-c", FREEZES, folders["embedder"], int(number), timeout=120)
    assert printed == "frozen\n"


def test_stops_if_the_models_cannot_be_warmed_up(
    isorun: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BackendFailed("no memory")

    monkeypatch.setattr(Session, "warmup", fail)
    ran = isorun("serve", folders["embedder"], "--backend", "ort-cpu", "--port", "0")
    assert (ran.code, ": no memory" in ran.err) == (3, True)


def test_an_address_in_use_is_refused_before_models_are_opened(isorun: Any, folders: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        ran = isorun("serve", folders["embedder"], "--backend", "ort-cpu", "--port", str(port))
    assert (ran.code, f"127.0.0.1, port {port}: Address already in use" in ran.err) == (2, True)
    assert "compiled" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{embedder}", "--host", "10.255.255.1"], "Cannot listen on 10.255.255.1"),
        (["{embedder}", "--host", "no-such-host.invalid"], "Cannot listen on no-such-host.invalid"),
        (["nothing"], "There is no model nothing"),
        (["{embedder}", "{embedder}"], "Two models are called 'embedder'"),
        (["a={embedder}", "--task", "b=embed"], "no model is called 'b'"),
        (["a={embedder}", "--task", "a=embedding"], "no task 'embedding'; did you mean 'embed'"),
        (["a={embedder}", "--task", "a=rerank"], "ForSequenceClassification"),
        (["{embedder}", "--api-key-file", "{embedder}"], "is a folder"),
        (["=x"], "expected MODEL or NAME=MODEL"),
        (["{embedder}", "--cors-origin", "https://a.example/"], "without a path"),
        (["{embedder}", "--cors-origin", "a.example"], "expected https://HOST"),
        (["{embedder}", "--replicas", "2"], "--replicas: no effect without --ray"),
        (["{embedder}", "--cpus", "1"], "--cpus: no effect without --ray"),
        (["{embedder}", "--ray", "--drain", "1", "--prepare"], "--drain and --prepare: no effect with --ray"),
        (["{embedder}", "--no-warmup", "--no-measure"], "--no-measure: no effect with --no-warmup"),
        (["{embedder}", "--no-warmup", "--prepare"], "--no-warmup: no effect with --prepare"),
        (["{reranker}", "--pooling", "mean"], "--pooling has no effect"),
        (["{embedder}", "--task", "embedder=tensors", "--max-length", "9"], "--max-length has no effect"),
    ],
)
def test_wrong_arguments(isorun: Any, folders: dict[str, Path], arguments: list[str], message: str) -> None:
    ran = isorun("serve", *(text.format(**folders) for text in arguments), "--backend", "ort-cpu")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("text", [" ", "# none yet"])
def test_a_variable_without_a_key_opens_nothing(
    isorun: Any, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ISORUN_API_KEYS", text)
    ran = isorun("serve", folders["embedder"], "--backend", "ort-cpu", "--port", "0")
    assert (ran.code, "$ISORUN_API_KEYS is set and has no key" in ran.err) == (2, True)
