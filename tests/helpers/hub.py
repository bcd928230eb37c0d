"""A Hugging Face hub on this machine: the few answers that huggingface_hub asks for, over real HTTP; and its cache."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_cache(root: Path, name: str, files: Mapping[str, bytes], commit: str = COMMIT) -> Path:
    """A repository in the layout of Hugging Face's cache: each file of a snapshot is a link to a blob."""
    folder = root / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for file, content in files.items():
        blob, link = folder / "blobs" / hashlib.sha1(content).hexdigest(), snapshot / file
        for path in (blob, link, folder / "refs" / "main"):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(commit)
    return snapshot


@contextmanager
def serve(repositories: Mapping[str, Mapping[str, bytes]], seconds_a_file: float = 0.0) -> Iterator[str]:
    """Serve repositories (id to file name to content). Yields the address, for ``HF_ENDPOINT``.

    ``seconds_a_file`` holds every file back half-way, for a download that can be interrupted.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0].removeprefix("/")
            for name, files in repositories.items():
                if path.startswith(f"api/models/{name}"):
                    listed = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
                    info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": listed, "private": False}
                    self._send(json.dumps({**info, "tags": [], "downloads": 0}).encode(), body, {})
                    return
                file = path.removeprefix(f"{name}/resolve/{COMMIT}/")
                if file in files:
                    etag = hashlib.sha1(files[file]).hexdigest()
                    headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                    self._send(files[file], body, headers, hold=seconds_a_file)
                    return
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send(self, content: bytes, body: bool, headers: Mapping[str, str], hold: float = 0.0) -> None:
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if not body:
                return
            half = len(content) // 2
            try:
                self.wfile.write(content[:half])
                self.wfile.flush()
                if hold:
                    stopping.wait(hold)
                self.wfile.write(content[half:])
            except ConnectionError:  # the client was interrupted: what the test wants
                self.close_connection = True

    stopping = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
