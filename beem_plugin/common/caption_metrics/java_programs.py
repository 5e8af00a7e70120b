"""Runs the Java programs of pycocoevalcap, METEOR 1.5 and SPICE 1.0, with the same settings on every machine."""

import importlib.util
import json
import math
import re
import shutil
import subprocess
import tempfile
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


def run_java(arguments: Sequence[str], what: str, timeout: float) -> str:
    """The standard output of a Java program; a failure, or no end within `timeout` seconds, is a `ScorerError`."""
    java = shutil.which("java")
    if java is None:
        raise ScorerError(f"`java` is not installed; {INSTALL_JAVA}")
    try:
        command = [java, *_JVM, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ScorerError(f"{what} did not finish within {timeout:g} seconds and was stopped") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        cause = next(
            (line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "no message"
        )
        raise ScorerError(f"{what} failed with status {done.returncode}: {cause.strip()}")
    return done.stdout.decode("utf-8", errors="replace")


_SCORE = re.compile(r"^(?:Segment \d+|Final) score:\s+([\d.]+(?:E-?\d+)?)$", re.MULTILINE)


def meteor(candidates: Sequence[str], references: Sequence[Sequence[str]], timeout: float) -> tuple[float, list[float]]:
    """The score of the set, and of each caption; pycocoevalcap's own class waits forever if the program crashes."""
    count = max(map(len, references))
    # The program reads as many references for each caption; a repeated one changes no score.
    padded = [text for texts in references for text in [*texts, *[texts[-1]] * (count - len(texts))]]
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, "captions.txt"), Path(name, "references.txt")]
        for file, texts in zip(files, (candidates, padded)):
            lines = [" ".join(text.replace("|||", " ").split()) or "<empty>" for text in texts]
            file.write_text("\n".join([*lines, ""]), encoding="utf-8", newline="\n")
        jar = package_file("meteor", "meteor-1.5.jar")
        program = ["-Xmx2G", "-jar", jar, *files, "-l", "en", "-norm", "-r", count]
        output = run_java([*map(str, program)], "METEOR", timeout)
    scores = [float(score) for score in _SCORE.findall(output)]
    if len(scores) != len(candidates) + 1:
        raise ScorerError(f"METEOR returned {len(scores)} scores for {len(candidates)} captions and their whole")
    return scores[-1], scores[:-1]


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
    """The mean score, and the score of each caption; `jars` is the folder of `check_spice_jars`."""
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
