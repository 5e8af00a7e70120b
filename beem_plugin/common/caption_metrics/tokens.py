"""Tokenizes captions for metrics: lower case, without punctuation."""

from __future__ import annotations

import re
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from beem_plugin.common.caption_metrics.java_programs import ScorerError, package_file, run_java

# Punctuation tokens of the Penn Treebank tokenizer, which pycocoevalcap removes.
PUNCTUATION = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())  # noqa: SIM905
_JAR = ("tokenizer", "stanford-corenlp-3.4.1.jar")
_RENAMED = {"(": "-lrb-", ")": "-rrb-", '"': "``"}
_WORD = re.compile(r"n't\b|'\w+|\w+?(?=n't\b)|\w+|[^\w\s]")


def one_line(caption: str) -> str:
    """
    A caption without line separators and control characters. Line separators other than the newline
    (U+2028, U+0085, ...) would shift all following captions by one line.
    """
    visible = "".join(" " if unicodedata.category(character) == "Cc" else character for character in caption)
    return " ".join(visible.split())


def treebank_tokens(captions: Sequence[str], timeout: float) -> list[str]:
    """The tokens of each caption from the Penn Treebank tokenizer in pycocoevalcap, as for published scores."""
    if not captions:
        return []
    jar = package_file(*_JAR)
    # pycocoevalcap writes this file to its own folder, which may be read-only.
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "captions.txt"
        source.write_text("".join(f"{one_line(caption)}\n" for caption in captions), encoding="utf-8", newline="\n")
        main = "edu.stanford.nlp.process.PTBTokenizer"
        output = run_java(
            ["-cp", str(jar), main, "-preserveLines", "-lowerCase", str(source)], "the caption tokenizer", timeout
        )
    lines = output.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) != len(captions):
        raise ScorerError(f"the caption tokenizer returned {len(lines)} lines for {len(captions)} captions")
    return [_without_punctuation(line.split(" ")) for line in lines]


def simple_tokens(captions: Sequence[str]) -> list[str]:
    """`treebank_tokens` without Java: equal for plain words, different for abbreviations, currencies etc."""
    words = (_WORD.findall(one_line(caption).lower()) for caption in captions)
    return [_without_punctuation([_RENAMED.get(word, word) for word in found]) for found in words]


def _without_punctuation(words: Sequence[str]) -> str:
    return " ".join(word for word in (word.strip() for word in words) if word and word not in PUNCTUATION)
