"""Commands in processes of their own, forked from one in which everything is imported: a new one imports for 8 s."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401
import torch

import beem_plugin.components  # noqa: F401
from beem_plugin.commands import main
from tests.tiny_project import Result

FORK = multiprocessing.get_context("fork")
TIMEOUT = 240
_server: list[Connection] = []


def start_server() -> None:
    """
    Forks the process from which the others are forked. Called before tests are collected, so that these have no threads
    and find nothing registered but the package's components.
    """
    here, there = multiprocessing.Pipe()
    if os.fork():
        there.close()
        _server.append(here)
        return
    try:
        here.close()
        gc.freeze()
        gc.enable()
        _serve(there)
    finally:
        os._exit(0)


def _serve(caller: Connection) -> None:
    """Until the caller ends, which raises an `EOFError`."""
    while True:
        count, work = caller.recv()
        processes = [FORK.Process(target=_start, args=(work, number)) for number in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT)
            if process.exitcode is None:
                process.kill()
                process.join()
        caller.send([process.exitcode for process in processes])


def command(*arguments: str, folder: Path, path: Path | None = None, **variables: str) -> Result:
    """`python -m beem_plugin ARGUMENTS` in `folder`, with `path` on `PYTHONPATH`."""
    return _run([variables], folder, path, _command, arguments)[0]


def train_twice(*arguments: str, folder: Path, path: Path | None = None) -> list[Result]:
    """`torchrun --nproc_per_node 2 -m beem_plugin train ARGUMENTS`."""
    return two_processes(_command, ("train", *arguments), folder=folder, path=path)


def process(function: Callable[..., Any], *given: Any, folder: Path) -> Result:
    """A function of a module in a process; what it returns is the exit status."""
    return _run([{}], folder, None, function, *given)[0]


def two_processes(function: Callable[..., Any], *given: Any, folder: Path, path: Path | None = None) -> list[Result]:
    """A function of a module in two processes that find each other as torchrun's do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
    ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    return _run(ranks, folder, path, function, *given)


def _run(variables: list[dict[str, str]], folder: Path, path: Path | None, *work: Any) -> list[Result]:
    """One process for each dictionary of environment variables."""
    environments = [{**os.environ, "OMP_NUM_THREADS": "1", **more} for more in variables]
    printed = [[folder / f".{stream}_{number}" for stream in ("stdout", "stderr")] for number in range(len(variables))]
    (server,) = _server
    server.send((len(variables), pickle.dumps((printed, folder, path, environments, work))))
    results = []
    for status, files in zip(server.recv(), printed, strict=True):
        results.append(Result(status, *(file.read_text(encoding="utf-8") for file in files)))
        for file in files:
            file.unlink()
    return results


def _start(work: bytes, number: int) -> None:
    printed, folder, path, environments, (function, *given) = pickle.loads(work)
    for stream, file in enumerate(printed[number], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    # In place of pytest's own; open until the process ends.
    sys.stdin, sys.stdout = open(os.devnull), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environments[number])
    os.chdir(folder)
    sys.path[:0] = ["", *([str(path)] if path else [])]
    sys.exit(function(*given))


def _command(arguments: tuple[str, ...]) -> int:
    torch.set_num_threads(1)
    return main("python -m beem_plugin", arguments)
