"""The Java programs inside pycocoevalcap, started so that they do the same on every machine."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from beem_plugin.common.errors import BeemError, ConfigurationError

PACKAGE = "pycocoevalcap"
INSTALL_JAVA = "install a Java runtime (Debian, Ubuntu: apt-get install default-jre-headless)"

# Under a locale that writes 0,5 METEOR cannot read its own numbers; and the text is UTF-8 wherever we are.
_JVM = ["-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"]


class ScorerError(BeemError):
    """One scorer cannot run or failed; the others can go on without it."""


def package_file(*parts: str) -> Path:
    """A file of pycocoevalcap, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"scoring captions needs a package that is not installed: pip install {PACKAGE} "
            "(with a Java runtime beside it for METEOR, SPICE and the Penn Treebank tokenizer)"
        )
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)


def has_java() -> bool:
    return shutil.which("java") is not None


def java_command(arguments: Sequence[str]) -> list[str]:
    """`java` with our locale before `arguments`."""
    java = shutil.which("java")
    if java is None:
        raise ScorerError(f"there is no `java` on this machine; {INSTALL_JAVA}")
    return [java, *_JVM, *arguments]


def run_java(arguments: Sequence[str], what: str, timeout: float) -> str:
    """
    What a Java program prints.

    # Parameters

    arguments : `Sequence[str]`
        After `java`; paths must be absolute.
    what : `str`
        The scorer, for errors.
    timeout : `float`
        Seconds until the program is ended.

    # Raises

    `ScorerError` when it fails, or is not done in time.
    """
    try:
        done = subprocess.run(
            java_command(arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise ScorerError(f"{what} was not done after {timeout:g} seconds and was ended") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        cause = next((line for line in said if "Exception" in line or "Error" in line), said[-1] if said else "no word")
        raise ScorerError(f"{what} failed with status {done.returncode}: {cause.strip()}")
    return done.stdout.decode("utf-8", errors="replace")
