"""Caption metrics of a set of captions."""

import contextlib
import io
import logging
import re
import tempfile
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from beem_plugin.common.caption_metrics import java_programs
from beem_plugin.common.errors import DataError, check_choice

logger = logging.getLogger(__name__)

METRICS = ("bleu", "meteor", "rouge_l", "cider", "spice")
DEFAULT_METRICS = ("bleu", "meteor", "rouge_l", "cider")
NEEDS_JAVA = ("meteor", "spice")


@dataclass
class CaptionScores:
    """
    `metrics` has `bleu_1` to `bleu_4`, `meteor`, `rouge_l`, `cider`, `spice`, as far as requested and available, and
    `per_image` the same for each image, in the order of the candidates. `tokenizer` is `"ptb"`, as for published
    scores, or `"simple"` without Java, with slightly different values; `warnings` names metrics that are omitted.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    per_image: dict[str, list[float]] = field(default_factory=dict)
    tokenizer: str = "ptb"
    warnings: list[str] = field(default_factory=list)


def check_metrics(metrics: Sequence[str], spice_jars: str | Path | None = None) -> Path | None:
    """The folder of SPICE's jars if SPICE is requested; raises for an unknown metric and for what is not installed."""
    for name in metrics:
        check_choice("caption metrics", name, METRICS)
    java_programs.package_file()
    return java_programs.check_spice_jars(spice_jars) if "spice" in metrics else None


def score_captions(
    candidates: Mapping[Hashable, str],
    references: Mapping[Hashable, Sequence[str]],
    metrics: Sequence[str] = DEFAULT_METRICS,
    spice_jars: str | None = None,
    timeout: float = 1800.0,
) -> CaptionScores:
    """
    Scores a whole split at once, since CIDEr and BLEU count n-grams over the split. `candidates` has one caption for
    each image, by the image's name, `references` its reference captions; `spice_jars` is the folder with CoreNLP 3.6.0
    for SPICE. A scorer that fails, or needs Java if Java is not installed, is omitted with a warning. An image without
    a reference is a `DataError`; an unknown metric, or a missing pycocoevalcap, a `ConfigurationError`.
    """
    jars = check_metrics(metrics, spice_jars)
    keys = _checked_keys(candidates, references)
    result = CaptionScores()
    captions, texts = _tokenized(
        [candidates[key] for key in keys], [list(references[key]) for key in keys], result, timeout
    )
    for key, kept in zip(keys, texts):
        if not kept:
            raise DataError(f"image {key!r}: its references contain only punctuation")
    for name in METRICS:
        if name not in metrics or (name in NEEDS_JAVA and result.tokenizer != "ptb"):
            continue
        try:
            if name == "meteor":
                _add(result, name, *java_programs.meteor(captions, texts, timeout))
            elif name == "spice":
                assert jars is not None
                _add(result, name, *java_programs.spice(captions, texts, jars, timeout))
            else:
                _python_scores(result, name, captions, texts)
        except java_programs.ScorerError as error:
            result.warnings.append(f"{name} is omitted: {error}")
    if "cider" in metrics and len(keys) == 1:
        result.warnings.append("cider of a single image is 0 by definition")
    for warning in result.warnings:
        logger.warning("captions: %s", warning)
    return result


def _checked_keys(candidates: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> list[Hashable]:
    keys = list(candidates)
    if not keys:
        raise DataError("there are no captions to score")
    for key in keys:
        if not isinstance(candidates[key], str):
            raise DataError(f"image {key!r}: found {candidates[key]!r}, allowed: one caption per image")
        if not references.get(key):
            raise DataError(f"image {key!r}: it has no reference")
    return keys


def _tokenized(
    captions: list[str], references: list[list[str]], result: CaptionScores, timeout: float
) -> tuple[list[str], list[list[str]]]:
    """Tokenized captions and references; references without tokens are removed."""
    flat = captions + [text for texts in references for text in texts]
    try:
        tokens = treebank_tokens(flat, timeout) if java_programs.has_java() else None
        reason = (
            "`java` is not installed: METEOR and SPICE are omitted, and captions are tokenized without the Penn "
            f"Treebank tokenizer, so other metrics differ slightly from published values; {java_programs.INSTALL_JAVA}"
        )
    except java_programs.ScorerError as error:
        tokens = None
        reason = f"METEOR and SPICE are omitted, and captions are tokenized without Java: {error}"
    if tokens is None:
        result.tokenizer = "simple"
        result.warnings.append(reason)
        tokens = simple_tokens(flat)
    rest = iter(tokens[len(captions) :])
    return tokens[: len(captions)], [[text for text in (next(rest) for _ in texts) if text] for texts in references]


def _python_scores(result: CaptionScores, name: str, captions: list[str], references: list[list[str]]) -> None:
    """Runs a Python scorer of pycocoevalcap; its standard output is suppressed."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    scorer = {"bleu": lambda: Bleu(4), "rouge_l": Rouge, "cider": Cider}[name]()
    expected = dict(enumerate(references))
    found = {number: [caption] for number, caption in enumerate(captions)}
    with contextlib.redirect_stdout(io.StringIO()):
        score, scores = scorer.compute_score(expected, found)
    if name != "bleu":
        _add(result, name, score, scores)
        return
    for order, (value, values) in enumerate(zip(score, scores), 1):
        _add(result, f"bleu_{order}", value, values)


def _add(result: CaptionScores, name: str, score: float, scores: Sequence[float]) -> None:
    result.metrics[name] = float(score)
    result.per_image[name] = [float(value) for value in scores]


# Punctuation tokens of the Penn Treebank tokenizer, which pycocoevalcap removes.
PUNCTUATION = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())  # noqa: SIM905
_JAR = ("tokenizer", "stanford-corenlp-3.4.1.jar")
_RENAMED = {"(": "-lrb-", ")": "-rrb-", '"': "``"}
_WORD = re.compile(r"n't\b|'\w+|\w+?(?=n't\b)|\w+|[^\w\s]")


def one_line(caption: str) -> str:
    """A caption without control characters and line separators (U+2028, ...), which would shift all later captions."""
    visible = "".join(" " if unicodedata.category(character) == "Cc" else character for character in caption)
    return " ".join(visible.split())


def treebank_tokens(captions: Sequence[str], timeout: float) -> list[str]:
    """The tokens of each caption from the Penn Treebank tokenizer in pycocoevalcap, as for published scores."""
    if not captions:
        return []
    jar = java_programs.package_file(*_JAR)
    # pycocoevalcap writes this file to its own folder, which may be read-only.
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "captions.txt"
        source.write_text("".join(f"{one_line(caption)}\n" for caption in captions), encoding="utf-8", newline="\n")
        main = "edu.stanford.nlp.process.PTBTokenizer"
        output = java_programs.run_java(
            ["-cp", str(jar), main, "-preserveLines", "-lowerCase", str(source)], "the caption tokenizer", timeout
        )
    lines = output.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) != len(captions):
        raise java_programs.ScorerError(
            f"the caption tokenizer returned {len(lines)} lines for {len(captions)} captions"
        )
    return [_without_punctuation(line.split(" ")) for line in lines]


def simple_tokens(captions: Sequence[str]) -> list[str]:
    """`treebank_tokens` without Java: equal for plain words, different for abbreviations, currencies etc."""
    words = (_WORD.findall(one_line(caption).lower()) for caption in captions)
    return [_without_punctuation([_RENAMED.get(word, word) for word in found]) for found in words]


def _without_punctuation(words: Sequence[str]) -> str:
    return " ".join(word for word in (word.strip() for word in words) if word and word not in PUNCTUATION)
