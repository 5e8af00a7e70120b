"""METEOR 1.5, by the Java program in pycocoevalcap."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from beem_plugin.common.caption_metrics.programs import ScorerError, java_command, package_file

_SEPARATOR = " ||| "


def meteor(candidates: Sequence[str], references: Sequence[Sequence[str]], timeout: float) -> tuple[float, list[float]]:
    """
    The score of the whole set, and of each caption, from tokenized captions and the tokenized references of each.

    pycocoevalcap's own class waits forever if the program crashes or a caption is malformed; this function stops the
    program after `timeout` seconds and raises a `ScorerError`.
    """
    jar = package_file("meteor", "meteor-1.5.jar")
    process = subprocess.Popen(
        java_command(["-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]),
        cwd=jar.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A pipe that is not read would fill up and block the program.
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(timeout, process.kill)
    timer.start()

    def request(*parts: str) -> str:
        """Sends a line, unless there are no parts, and returns the next line of the output."""
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # after the end of the program its output ends too
            if parts:
                process.stdin.write(_SEPARATOR.join(parts) + "\n")
                process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return line.strip()
        if timer.finished.is_set():
            raise ScorerError(f"METEOR did not finish within {timeout:g} seconds and was stopped")
        raise ScorerError("METEOR terminated unexpectedly; its Java program needs 2 GB of memory")

    try:
        statistics = [
            # With an empty caption the program would read the last reference as the caption.
            request("SCORE", *map(_clean, texts), _clean(caption) or "<empty>")
            for caption, texts in zip(candidates, references, strict=True)
        ]
        scores = [_number(request("EVAL", *statistics))]
        scores += [_number(request()) for _ in statistics]
        return scores[-1], scores[:-1]
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()


def _clean(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScorerError(f"METEOR returned {text[:80]!r}, expected a number") from None
