"""The command: its options, and that it answers what is in flight before it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from beem_plugin.__main__ import run as start
from tests.forked import process
from tests.tiny_project import run, sentences

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from beem_plugin.serving.app import listening


def serve(pipe: Path, *arguments: str) -> None:
    """Run in a process: writes its number and what the command prints to `pipe`."""
    with pipe.open("w", buffering=1) as sys.stdout:
        print(os.getpid())
        sys.argv = ["allennlp", "serve", *arguments]
        start()


def test_a_server_answers_and_stops_after_the_open_requests(trained: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "printed"
    os.mkfifo(pipe)
    arguments = [str(trained), "--port", "0", "--policy", "max_probability", "--speedup", "1.5"]
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(process, serve, pipe, *arguments, folder=tmp_path)
        with pipe.open() as printed:
            number, url = int(printed.readline()), printed.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            health = json.loads(urllib.request.urlopen(f"{url}/health", timeout=60).read())
            assert health["exit_policy"]["type"] == "max_probability"
            body = json.dumps({"inputs": [text for text, _ in sentences(200, seed=1)]}).encode()
            host, port = url.removeprefix("http://").split(":")
            head = "POST /predict HTTP/1.1\r\n"
            head += f"Host: {host}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(head.encode())
                assert connection.recv(1000).startswith(b"HTTP/1.1 100"), "the server has begun to read the request"
                os.kill(number, signal.SIGTERM)
                connection.sendall(body)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            assert len(json.loads(answer.split(b"\r\n\r\n", 1)[1])["predictions"]) == 200
            assert server.result(60).returncode == 0
            assert printed.read() == "stopped\n"


def test_answers_are_sent_at_once() -> None:
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()), listener:
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "--port: found 70000, allowed: 0 (any free one) to 65535"),
        (["--host", "256.0.0.1"], "--host, --port: cannot listen on 256.0.0.1:8000"),
        (["--engine", "none"], "--engine: found 'none', allowed: "),
        (["--max-batch", "0"], "max_batch: found 0, allowed: 1 or more"),
        (["--policy", "patience", "--speedup", "2"], "'patience', which has no thresholds to fit"),
        (["--policy", "{type: 'margin', thresholds: }"], "--policy:1:"),
        (["--policy", "{type: 'fixed_exit', exit: 9}"], "exit: found 9, allowed: 1 to "),
    ],
)
def test_wrong_options_are_one_line(trained: Path, options: list[str], message: str) -> None:
    options = options if "--host" in options or "--port" in options else ["--port", "0", *options]
    found = run("serve", str(trained), *options, check=False)
    assert found.returncode == 1 and message in found.stderr and "Traceback" not in found.stderr
