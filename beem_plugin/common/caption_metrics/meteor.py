"""METEOR 1.5, by the Java program in pycocoevalcap."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from beem_plugin.common.caption_metrics.programs import ScorerError, java_command, package_file

_SEPARATOR = " ||| "


def meteor(candidates: Sequence[str], references: Sequence[Sequence[str]], timeout: float) -> tuple[float, list[float]]:
    """
    The score of the whole set, and of each caption.

    pycocoevalcap's own class waits forever if the program crashes or a caption is malformed; this function stops the
    program and raises a `ScorerError`.

    # Parameters

    candidates : `Sequence[str]`
        Tokenized captions.
    references : `Sequence[Sequence[str]]`
        Tokenized references of each.
    timeout : `float`
        Seconds for all captions.
    """
    with _Program(timeout) as program:
        statistics = []
        for caption, texts in zip(candidates, references, strict=True):
            # With an empty caption the program would read the last reference as the caption.
            parts = [*(_clean(text) for text in texts), _clean(caption) or "<empty>"]
            statistics.append(program.request("SCORE" + _SEPARATOR + _SEPARATOR.join(parts)))
        program.send("EVAL" + _SEPARATOR + _SEPARATOR.join(statistics))
        scores = [_number(program.receive()) for _ in statistics]
        return _number(program.receive()), scores


class _Program:
    """The Java process of METEOR: one output line per input line, with a common deadline."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._lines: queue.Queue[str | None] = queue.Queue()
        jar = package_file("meteor", "meteor-1.5.jar")
        self._process = subprocess.Popen(
            java_command(["-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]),
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A pipe that is not read would fill up and block the program.
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def request(self, line: str) -> str:
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ScorerError("METEOR terminated unexpectedly; its Java program needs 2 GB of memory") from None

    def receive(self) -> str:
        try:
            line = self._lines.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise ScorerError(f"METEOR did not finish within {self._timeout:g} seconds and was stopped") from None
        if line is None:
            raise ScorerError("METEOR terminated unexpectedly; its Java program needs 2 GB of memory")
        return line.strip()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # the pipe was closed by `__exit__`
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)


def _clean(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScorerError(f"METEOR returned {text[:80]!r}, expected a number") from None
