"""Runs the Java programs of pycocoevalcap, METEOR 1.5 and SPICE 1.0, with the same settings on every machine."""

import importlib.util
import json
import math
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
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


JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
WHERE = "http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
MEMORY = "8G"

# Since Java 16 the serialization library of the program needs `--add-opens` for these packages.
_OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.math", "java.net", "java.text")


def check_spice_jars(folder: str | Path | None) -> Path:
    """The folder with both of `JARS`; raises a `ConfigurationError` with their address if one is missing."""
    if folder is None:
        raise ConfigurationError(
            f"SPICE: no spice_jars given; allowed: a folder with {JARS[0]} and {JARS[1]}, from {WHERE} (385 MB)"
        )
    path = Path(folder).expanduser()
    missing = [name for name in JARS if not (path / name).is_file()]
    if missing:
        raise ConfigurationError(f"SPICE: spice_jars {path} lacks {', '.join(missing)}, from {WHERE}")
    return path.resolve()


def spice(
    candidates: Sequence[str], references: Sequence[Sequence[str]], jars: Path, timeout: float
) -> tuple[float, list[float]]:
    """
    The mean score, and the score of each caption, from tokenized captions, the tokenized references of each, and the
    folder of `check_spice_jars`.
    """
    records = [
        {"image_id": number, "test": caption, "refs": list(texts)}
        for number, (caption, texts) in enumerate(zip(candidates, references, strict=True))
    ]
    # The program loads libraries from `lib` next to its jar. It is copied to a temporary folder, because the package's
    # folder lacks two jars and may be read-only.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, program = folder / "lib", folder / "spice-1.0.jar"
        library.mkdir()
        for jar in [*package_file("spice", "lib").glob("*.jar"), *(jars / name for name in JARS)]:
            (library / jar.name).symlink_to(jar)
        shutil.copyfile(package_file("spice", program.name), program)
        (folder / "cache").mkdir()
        (folder / "in.json").write_text(json.dumps(records), encoding="utf-8")
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        arguments = [*opened, f"-Xmx{MEMORY}", "-jar", str(program), str(folder / "in.json")]
        arguments += ["-cache", str(folder / "cache"), "-out", str(folder / "out.json"), "-subset", "-silent"]
        run_java(arguments, "SPICE", timeout)
        try:
            results = json.loads((folder / "out.json").read_text(encoding="utf-8"))
            found = {int(item["image_id"]): float(item["scores"]["All"]["f"]) for item in results}
            scores = [found[number] for number in range(len(records))]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ScorerError(f"SPICE wrote no readable result: {type(error).__name__} {error}") from None
    return (sum(scores) / len(scores) if scores else math.nan), scores
