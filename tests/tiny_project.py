"""A tiny pretrained encoder and tiny GLUE tasks on disk: what the tests that run whole commands need."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "training_configs"

GOOD = ["good", "great", "fine", "lovely"]
BAD = ["bad", "poor", "awful", "dull"]
PLAIN = ["the", "film", "a", "story", "is", "and", "was", "of", "it", "very"]
THREE = ["contradiction", "entailment", "neutral"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_backbone(folder: Path, layers: int = 3) -> Path:
    """A random BERT of hidden size 32 with a word tokenizer, as `from_pretrained` takes it."""
    words = {word: index for index, word in enumerate([*SPECIAL, *GOOD, *BAD, *PLAIN])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(str(folder))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(str(folder))
    return folder


def sentences(count: int, seed: int) -> list[tuple[str, int]]:
    """Sentences of 3 to 12 words, and whether they hold more good words than bad ones. Labels alternate."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = number % 2
        kind = GOOD if label else BAD
        words = [rng.choice(kind)] + [rng.choice(PLAIN) for _ in range(rng.randint(2, 11))]
        rng.shuffle(words)
        rows.append((" ".join(words), label))
    return rows


def write_glue(folder: Path, train: int = 120, dev: int = 40) -> Path:
    """GLUE's tasks in its own layout, all of them about good and bad words."""
    for split, count, seed in (("train", train, 1), ("dev", dev, 2)):
        rows = sentences(count, seed)
        names = ["not_entailment", "entailment"]
        tables = {
            "RTE": (
                "index\tsentence1\tsentence2\tlabel",
                [f"{number}\t{text}\tit is good\t{names[label]}" for number, (text, label) in enumerate(rows)],
            ),
            "MRPC": (
                "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
                [f"{label}\t{number}\t{number}\t{text}\tit is good" for number, (text, label) in enumerate(rows)],
            ),
            "CoLA": (None, [f"src\t{label}\t\t{text}" for text, label in rows]),
            "STS-B": (
                "index\tsentence1\tsentence2\tscore",
                [f"{n}\t{text}\tit is good\t{score(text, label):.3f}" for n, (text, label) in enumerate(rows)],
            ),
            "SST-2": ("sentence\tlabel", [f"{text}\t{label}" for text, label in rows]),
            "QNLI": (
                "index\tquestion\tsentence\tlabel",
                [f"{number}\tis it good\t{text}\t{names[label]}" for number, (text, label) in enumerate(rows)],
            ),
            "WNLI": (
                "index\tsentence1\tsentence2\tlabel",
                [f"{number}\t{text}\tit is good\t{label}" for number, (text, label) in enumerate(rows)],
            ),
            "QQP": (
                "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
                [f"{number}\t1\t2\t{text}\tit is good\t{label}" for number, (text, label) in enumerate(rows)],
            ),
            "MNLI": (
                "index\tsentence1\tsentence2\tgold_label",
                [
                    f"{number}\t{text}\tit is good\t{THREE[label if number % 5 else 2]}"
                    for number, (text, label) in enumerate(rows)
                ],
            ),
        }
        for task, (header, lines) in tables.items():
            (folder / task).mkdir(parents=True, exist_ok=True)
            text = "\n".join(([] if header is None else [header]) + lines) + "\n"
            kinds = ("_matched", "_mismatched") if task == "MNLI" and split == "dev" else ("",)
            for kind in kinds:
                (folder / task / f"{split}{kind}.tsv").write_text(text, encoding="utf-8")
    return folder


def write_tickets(path: Path, rows: int = 160, delimiter: str = ",") -> Path:
    """A table of texts (`title`) in three unbalanced classes (`category`), with a number and a short text beside."""
    lines = [f"number{delimiter}title{delimiter}team{delimiter}category"]
    for number, (text, label) in enumerate(sentences(rows, seed=3)):
        category = "other" if number % 8 == 0 else ("billing", "login")[label]
        lines.append(delimiter.join([str(number), text, f"team {number % 40}", category]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def score(text: str, label: int) -> float:
    """From 0 to 5: high for good words, a little lower the longer the text."""
    return 1.0 + 4.0 * label - 0.08 * len(text.split())


@dataclass
class Result:
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, check: bool = True, stdin: str = "") -> Result:
    """A command as a user types it, in this process: a new process for each costs seconds."""
    from beem_plugin.commands import main

    stdout, stderr, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            status = main(argv=list(arguments))
    finally:
        sys.stdin = before
    result = Result(status, stdout.getvalue(), stderr.getvalue())
    if check:
        assert result.returncode == 0, result.stderr[-4000:]
    return result


def load_script(name: str) -> dict[str, Any]:
    """The names that a script without `.py` defines."""
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for their module
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[name]  # alone: a second copy of what the script imports would have other classes
    return vars(module)


def run_script(name: str, *arguments: str) -> str:
    """What a script prints, run in this process: a new process costs seconds."""
    with patch.object(sys, "argv", [name, *arguments]), contextlib.redirect_stdout(io.StringIO()) as printed:
        load_script(name)["main"]()
    return printed.getvalue()
