from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from beem_plugin.common.caption_metrics import java_programs as programs_module, score_captions
from beem_plugin.common.caption_metrics.java_programs import JARS, ScorerError, has_java, meteor, spice
from beem_plugin.common.caption_metrics.scores import one_line, simple_tokens, treebank_tokens
from beem_plugin.common.errors import ConfigurationError, DataError

pytest.importorskip("pycocoevalcap")

needs_java = pytest.mark.skipif(not has_java(), reason="there is no Java runtime")

CANDIDATES = {
    1: "a dog runs on the grass",
    2: "two men (in hats) sit at a café",
    3: "a woman's red car isn't here",
    4: "a man riding a wave",
}
REFERENCES = {
    1: ["A dog is running on grass .", "the dog runs"],
    2: ["Two men wearing hats sit in a cafe.", "men at a table at a café"],
    3: ["The woman's car is red.", "a red car", "The car, red, isn't here!"],
    4: ["A man on a surf-board riding a wave.", "surfer"],
}


def fake_java(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program named `java` that does what `script` says, and the only one on the path beside the shell's own."""
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module.shutil, "which", lambda name: None)


@pytest.mark.java
@needs_java
def test_values_equal_those_of_pycocoevalcap(capfd: pytest.CaptureFixture[str]) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    capfd.readouterr()
    found = score_captions(CANDIDATES, REFERENCES)
    assert capfd.readouterr().out == "", "BLEU's counts belong into nobody's output"
    assert found.tokenizer == "ptb" and found.warnings == []
    tokenizer = PTBTokenizer()
    texts = {f"wanted {key}": REFERENCES[key] for key in CANDIDATES}
    texts |= {f"said {key}": [text] for key, text in CANDIDATES.items()}
    tokens = tokenizer.tokenize({key: [{"caption": text} for text in group] for key, group in texts.items()})
    wanted, said = ({key: tokens[f"{kind} {key}"] for key in CANDIDATES} for kind in ("wanted", "said"))
    bleu, bleus = Bleu(4).compute_score(wanted, said)
    expected = {f"bleu_{order}": value for order, value in enumerate(bleu, 1)}
    per_image = {f"bleu_{order}": values for order, values in enumerate(bleus, 1)}
    # Meteor().compute_score(wanted, said): to load its paraphrases again takes ten seconds.
    expected["meteor"] = 0.35800633796152914
    per_image["meteor"] = [0.4035028092615153, 0.33660352363837054, 0.424595255130956, 0.3092780242217774]
    for name, scorer in (("cider", Cider()), ("rouge_l", Rouge())):
        expected[name], per_image[name] = scorer.compute_score(wanted, said)
    assert found.metrics == pytest.approx(expected, abs=1e-12)
    assert set(found.per_image) == set(per_image)
    for name, values in per_image.items():
        assert found.per_image[name] == pytest.approx(list(values), abs=1e-12)
    json.dumps(found.metrics)


@pytest.mark.java
@needs_java
def test_line_separators_in_a_caption_shift_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = ["one\u2028two", "", "three\x85four\x0bfive", " .", "Six, (seven)"]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
    assert treebank_tokens(captions, 60) == ["one two", "", "three four five", "", "six -lrb- seven -rrb-"]


def test_meteor_reads_as_many_references_of_each_caption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "read"
    copy = (
        f'for each; do case "$each" in *.txt) while read -r line; do echo "$line" >> {log}; done < "$each";; esac; done'
    )
    fake_java(tmp_path, monkeypatch, copy)
    with pytest.raises(ScorerError, match="returned 0 scores for 2 captions"):
        meteor(["", "a ||| dog"], [["the dog"], ["the", "cat"]], 60)
    assert log.read_text().splitlines() == ["<empty>", "a dog", "the dog", "the dog", "the", "cat"]


def test_simple_tokens_are_those_of_the_treebank_on_ordinary_captions() -> None:
    captions = ["A man's hat, isn't it?", 'Two "big" dogs (running) .', "a semi-truck; red"]
    assert simple_tokens(captions) == [
        "a man 's hat is n't it",
        "two big dogs -lrb- running -rrb-",
        "a semi truck red",
    ]


def test_one_line_keeps_the_words() -> None:
    assert one_line(" a\u2028b\x00c\n\td ") == "a b c d"


def test_without_java_the_other_metrics_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    found = score_captions(CANDIDATES, REFERENCES)
    assert set(found.metrics) == {"bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"}
    assert found.tokenizer == "simple"
    assert len(found.warnings) == 1 and "`java` is not" in found.warnings[0] and "default-jre" in found.warnings[0]
    perfect = score_captions({1: "a dog", 2: "two cats sit"}, {1: ["A dog."], 2: ["Two cats sit!"]})
    assert perfect.metrics["bleu_1"] == pytest.approx(1.0) and perfect.metrics["rouge_l"] == pytest.approx(1.0)


def test_a_java_that_fails_is_named_and_the_other_metrics_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, monkeypatch, "echo 'Error: could not reserve memory' >&2; exit 3")
    found = score_captions(CANDIDATES, REFERENCES, ["bleu", "meteor"])
    assert "bleu_4" in found.metrics and "meteor" not in found.metrics
    assert "failed with status 3: Error: could not reserve memory" in found.warnings[0]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec sleep 60", "did not finish within 0.5 seconds"),
        ("echo 'Error: no memory' >&2; exit 1", "METEOR failed with status 1: Error: no memory"),
        ("echo 'Final score: 0,5'", "returned 0 scores for 2 captions"),
    ],
)
def test_a_meteor_that_hangs_dies_or_babbles_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    fake_java(tmp_path, monkeypatch, script)
    with pytest.raises(ScorerError, match=words):
        meteor(["a dog", "a cat"], [["the dog"], ["the cat"]], 0.5 if "sleep" in script else 60)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="found 'blue', allowed: bleu"):
        score_captions(CANDIDATES, REFERENCES, ["blue"])
    with pytest.raises(DataError, match="image 9: it has no reference"):
        score_captions({9: "a"}, REFERENCES)
    with pytest.raises(DataError, match="no captions"):
        score_captions({}, {})


def test_references_of_punctuation_alone_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    with pytest.raises(DataError, match="image 1: its references contain only punctuation"):
        score_captions({1: "a"}, {1: [" . ", "!"]})


def test_cider_of_one_image_is_marked_as_meaningless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    found = score_captions({1: "a dog"}, {1: ["a dog"]}, ["cider"])
    assert found.metrics["cider"] == 0.0 and any("single image" in warning for warning in found.warnings)


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install pycocoevalcap"):
        score_captions(CANDIDATES, REFERENCES)


def test_spice_needs_its_jars(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no spice_jars given.*stanford-corenlp-3.6.0"):
        score_captions(CANDIDATES, REFERENCES, ["spice"])
    (tmp_path / JARS[0]).touch()
    with pytest.raises(ConfigurationError, match=f"lacks {JARS[1]}"):
        score_captions(CANDIDATES, REFERENCES, ["spice"], spice_jars=str(tmp_path))


def test_spice_runs_in_a_folder_of_its_own_with_the_jars_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in JARS:
        (jars / name).touch()
    # The program's place in its command is known; it answers for two captions if both jars stand beside it.
    answer = [{"image_id": number, "scores": {"All": {"f": value}}} for number, value in ((1, 0.5), (0, 0.25))]
    script = f"""
while [ "$1" != "-jar" ]; do shift; done
program="$2"
folder=$(dirname "$program")
[ -f "$folder/lib/{JARS[0]}" ] && [ -f "$folder/lib/{JARS[1]}" ] && grep -q 'a cat' "$3" || exit 4
echo '{json.dumps(answer)}' > "$7"
"""
    fake_java(tmp_path, monkeypatch, script)
    assert spice(["a dog", "a cat"], [["x"], ["y", "z"]], jars, 60) == (0.375, [0.25, 0.5])
    fake_java(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(ScorerError, match="no readable result"):
        spice(["a dog"], [["x"]], jars, 60)
