"""The command as a process: what clients see that leave, stay silent or are answered while the server stops."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

Start = Callable[..., "Server"]


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "isorun", "serve", str(folder), "--port", "0", "--backend", "ort-cpu"]
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if port := re.search(r"running on http://127.0.0.1:(\d+)", line):
                self.port = int(port[1])
                break
        else:
            pytest.fail("".join(self.log))
        self._reader = threading.Thread(target=self.log.extend, args=(self.process.stderr,))
        self._reader.start()
        self.until(lambda: self.get("/ready")[0] == 200)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(self, path: str) -> tuple[int, str]:
        with closing(self.connection()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def embed(self, texts: list[str]) -> int:
        with closing(self.connection()) as connection, post(connection, texts) as answer:
            return answer.status

    def metrics(self) -> str:
        return self.get("/metrics")[1]

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "".join(self.log)
            time.sleep(0.02)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    started = Server(folders["embedder"], "--no-warmup", "--idle", "1", "--drain", "0")
    yield started
    assert started.stop() == 0


def post(connection: http.client.HTTPConnection, texts: list[str]) -> http.client.HTTPResponse:
    connection.request("POST", "/embed", json.dumps({"inputs": texts}), {"content-type": "application/json"})
    return connection.getresponse()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")
@pytest.mark.parametrize(("path", "texts"), [("/", ["embedder", "ready"]), ("/docs", ["/v1/embeddings", "opblock"])])
def test_a_browser_without_network_shows_the_pages(server: Server, path: str, texts: list[str], tmp_path: Path) -> None:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--dump-dom"]
    command += ["--virtual-time-budget=10000"] if path == "/docs" else []  # its scripts; the other page reloads itself
    shown = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}{path}"], capture_output=True, text=True, timeout=120, check=True
    )
    assert all(text in shown.stdout for text in texts), shown.stdout + shown.stderr


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
def test_offers_of_http_2_are_ignored(server: Server, is_chunked: bool, is_split: bool) -> None:
    """Java's clients send one with every request, and the body in packets of its own."""
    body = b'{"inputs": ["a b"]}'
    head = b"POST /embed HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\n"
    head += b"Upgrade: h2c\r\nContent-Type: application/json\r\n"
    if is_chunked:
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        head += b"Content-Length: %d\r\n\r\n" % len(body)
    with closing(server.connection()) as connection:
        connection.connect()
        for _ in range(2):
            for part in (head, body) if is_split else (head + body,):
                connection.sock.sendall(part)
                time.sleep(0.1 * is_split)
            answer = http.client.HTTPResponse(connection.sock)
            answer.begin()
            assert (answer.status, len(json.loads(answer.read()))) == (200, 1)


def test_a_body_that_looks_like_an_offer_of_http_2_is_kept(server: Server) -> None:
    body = b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"
    head = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with closing(server.connection()) as connection:
        connection.connect()
        for part in (head + b"Content-Length: %d\r\n\r\n" % len(body), body):
            connection.sock.sendall(part)
            time.sleep(0.1)
        answer = http.client.HTTPResponse(connection.sock)
        answer.begin()
        assert answer.status == 400


def test_work_ends_for_a_client_that_leaves(server: Server) -> None:
    connection = server.connection()
    body = json.dumps({"inputs": ["a b c d e f g h " * 4] * 2048})
    connection.request("POST", "/embed", body, {"content-type": "application/json"})
    server.until(lambda: bool(re.search(r"isorun_waiting\{.*\} [1-9]", server.metrics())))
    connection.close()
    server.until(lambda: 'route="/embed",status="499"} 1\n' in server.metrics())
    server.until(lambda: bool(re.search(r"isorun_waiting\{.*\} 0\n", server.metrics())))
    assert server.embed(["a"]) == 200


def test_a_client_that_has_left_before_its_request_is_read_costs_no_work(server: Server) -> None:
    before = re.findall(r"^isorun_requests_total.*", server.metrics(), re.MULTILINE)
    left = int((re.findall(r'route="/embed",status="499"} (\d+)', server.metrics()) or ["0"])[0])
    server.process.send_signal(signal.SIGSTOP)
    for _ in range(5):
        connection = server.connection()
        connection.request("POST", "/embed", b'{"inputs": "a"}', {"content-type": "application/json"})
        connection.close()
    server.process.send_signal(signal.SIGCONT)
    server.until(lambda: f'route="/embed",status="499"}} {left + 5}\n' in server.metrics())
    assert re.findall(r"^isorun_requests_total.*", server.metrics(), re.MULTILINE) == before


def test_connections_without_a_whole_request_are_closed(server: Server) -> None:
    for sent in (b"", b"POST /embed HTTP/1.1\r\nhost: a\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""


def test_headers_have_a_limit(server: Server) -> None:
    with closing(server.connection()) as connection:
        connection.connect()
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sock.sendall(b"GET /health HTTP/1.1\r\nA: " + b"a" * 2**24)
    assert server.get("/health")[0] == 200


def test_clients_that_do_not_read_are_left(server: Server) -> None:
    shape = [512, 40]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [{"name": name, "shape": shape, "datatype": "INT64", "data": [1] * (512 * 40)} for name in names]
    body = json.dumps({"inputs": inputs}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(b"POST /v2/models/embedder/infer HTTP/1.1\r\nhost: a\r\n")
        connection.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        server.until(lambda: 'infer",status="200"}' in server.metrics())
        time.sleep(2)  # --idle and more
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(2**20):
                answer += part
    length = re.search(rb"content-length: (\d+)", answer)
    assert length is not None
    assert len(answer) < int(length[1])


def test_idle_connections_leave_others_alone(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
        assert server.embed(["a"]) == 200


def test_bodies_that_are_too_large_are_refused_before_they_arrive(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999999\r\n\r\n")
        answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/embeddings", {"error"}),
        ("/embed", {"error", "error_type"}),
        ("/v2/rerank", {"message"}),
        ("/v2/models/embedder/infer", {"error"}),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_send_bodies_that_are_too_large_read_the_answer(
    server: Server, path: str, form: set[str], chunked: bool
) -> None:
    parts = [b" " * 1_000_000] * 12
    with closing(server.connection()) as connection:
        connection.request("POST", path, iter(parts) if chunked else b"".join(parts), encode_chunked=chunked)
        answer = connection.getresponse()
        assert (answer.status, set(json.loads(answer.read()))) == (413, form)
        with post(connection, ["a"]) as answer:
            assert answer.status == 200


def test_a_server_that_stops_says_so_and_answers_every_request(folders: dict[str, Path]) -> None:
    server = Server(folders["embedder"], "--no-warmup", "--drain", "1", "--grace", "20")
    texts = ["a b c d e f g h " * 4] * 64
    answers: list[tuple[int, int]] = []
    closed: list[bool] = []
    broken: list[Exception] = []
    started = threading.Barrier(9)

    def call() -> None:
        with closing(server.connection()) as connection:
            started.wait()
            while True:
                try:
                    answer = post(connection, texts)
                    rows = json.loads(answer.read())
                except Exception as error:  # noqa: BLE001  # reported below
                    broken.append(error)
                    return
                answers.append((answer.status, len(rows)))
                if answer.headers["connection"] == "close":
                    closed.append(True)
                    return

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(0.5)
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: server.get("/ready")[0] == 503)
    code = server.stop()
    for thread in threads:
        thread.join()
    assert (code, broken, set(answers), len(closed)) == (0, [], {(200, 64)}, 8)


def test_a_server_that_stops_resets_no_connection(folders: dict[str, Path]) -> None:
    server = Server(folders["embedder"], "--no-warmup", "--drain", "0")
    statuses: list[int] = []
    broken: list[Exception] = []

    def call() -> None:
        while True:
            with closing(server.connection()) as connection:
                try:
                    connection.connect()
                except (ConnectionRefusedError, ConnectionResetError):  # the latter amid the handshake
                    return
                try:
                    with post(connection, ["a b c d"] * 8) as answer:
                        statuses.append(answer.status)
                except Exception as error:  # noqa: BLE001  # reported below
                    broken.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    with closing(server.connection()) as idle:
        with post(idle, ["a"]) as answer:
            answer.read()
        for thread in threads:
            thread.start()
        server.until(lambda: len(statuses) > 8)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        with post(idle, ["a"]) as answer:  # sent once nothing else is accepted
            assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert (server.stop(), broken, set(statuses)) == (0, [], {200})


def test_a_second_interruption_ends_at_once_without_a_traceback(folders: dict[str, Path]) -> None:
    server = Server(folders["embedder"], "--no-warmup", "--drain", "60")
    server.process.send_signal(signal.SIGINT)
    server.until(lambda: server.get("/ready")[0] == 503)
    server.process.send_signal(signal.SIGINT)
    server.process.wait(30)
    assert (server.stop(), "Traceback" in "".join(server.log)) == (130, False)


@pytest.mark.long
def test_warms_up_before_it_is_ready(folders: dict[str, Path]) -> None:
    server = Server(folders["reranker"])
    server.until(lambda: any("ready: reranker (rerank)" in line for line in server.log))
    assert server.stop() == 0
