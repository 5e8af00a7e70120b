"""SPICE 1.0, by the Java program of pycocoevalcap and CoreNLP jars that are downloaded separately."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from beem_plugin.common.caption_metrics.programs import ScorerError, package_file, run_java
from beem_plugin.common.errors import ConfigurationError

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
