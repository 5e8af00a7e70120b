"""Runs the Java programs of pycocoevalcap with the same settings on every machine."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from beem_plugin.common.errors import BeemError, ConfigurationError

PACKAGE = "pycocoevalcap"
INSTALL_JAVA = "install a Java runtime (Debian, Ubuntu: apt-get install default-jre-headless)"

# METEOR cannot parse its own numbers in a locale with decimal commas; captions are passed as UTF-8.
_JVM = ["-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"]


class ScorerError(BeemError):
    """A scorer cannot run or failed; other scorers are not affected."""


def package_file(*parts: str) -> Path:
    """A file of pycocoevalcap, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"scoring captions needs a package that is not installed: pip install {PACKAGE} "
            "(and a Java runtime for METEOR, SPICE and the Penn Treebank tokenizer)"
        )
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)


def has_java() -> bool:
    return shutil.which("java") is not None


def java_command(arguments: Sequence[str]) -> list[str]:
    """The command line of `java` with a fixed locale."""
    java = shutil.which("java")
    if java is None:
        raise ScorerError(f"`java` is not installed; {INSTALL_JAVA}")
    return [java, *_JVM, *arguments]


def run_java(arguments: Sequence[str], what: str, timeout: float) -> str:
    """
    The standard output of a Java program, run in any folder. Raises a `ScorerError` that names the scorer `what` if the
    program fails or does not finish within `timeout` seconds.
    """
    try:
        done = subprocess.run(
            java_command(arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise ScorerError(f"{what} did not finish within {timeout:g} seconds and was stopped") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        cause = next(
            (line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "no message"
        )
        raise ScorerError(f"{what} failed with status {done.returncode}: {cause.strip()}")
    return done.stdout.decode("utf-8", errors="replace")
