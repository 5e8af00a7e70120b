"""Commands in processes of their own, forked from one in which everything is imported: a new one imports for 9 s."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny_project import Result

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["beem_plugin.components", "beem_plugin.commands", "accelerate", "tests.tiny_project"])
TIMEOUT = 240


def command(*arguments: str, folder: Path, path: Path | None = None, **variables: str) -> Result:
    """`python -m beem_plugin ARGUMENTS` in `folder`, with `path` on `PYTHONPATH`."""
    return _run([variables], folder, path, _command, arguments)[0]


def train_twice(*arguments: str, folder: Path, path: Path | None = None) -> list[Result]:
    """`torchrun --nproc_per_node 2 -m beem_plugin train ARGUMENTS`."""
    return two_processes(_command, ("train", *arguments), folder=folder, path=path)


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
    running = []
    for number, more in enumerate(variables):
        printed = [folder / f".{stream}_{number}" for stream in ("stdout", "stderr")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
        process = CONTEXT.Process(target=_start, args=(printed, folder, path, environment, *work))
        process.start()
        running.append((process, printed))
    results = []
    for process, printed in running:
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            process.join()
        stdout, stderr = (file.read_text(encoding="utf-8") for file in printed)
        for file in printed:
            file.unlink()
        results.append(Result(process.exitcode or 0, stdout, stderr))
    return results


def _start(
    printed: list[Path], folder: Path, path: Path | None, environment: dict[str, str], function: Any, *given: Any
) -> None:
    for stream, file in enumerate(printed, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = ["", *([str(path)] if path else [])]
    sys.exit(function(*given))


def _command(arguments: tuple[str, ...]) -> int:
    import torch

    from beem_plugin.commands import main

    torch.set_num_threads(1)
    return main("python -m beem_plugin", arguments)
