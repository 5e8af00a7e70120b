"""
`allennlp predict` end to end, as a user runs it, against transformers' pipeline on the same network in the same run.

    python scripts/benchmark_predict.py [--sentences 1000000] [--cuda-device 0 --dtype float16] [--output F.json]

Makes an archive of a random network of BERT-base's shape, with a WordPiece tokenizer and a policy that exits at half of
the depth on average, and files of sentences of SST-2's lengths. The command is timed on two files of different length,
so that the rate does not contain the start-up, which is reported apart.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import beem_plugin.components  # noqa: F401
from beem_plugin.archival import archive_model, load_archive, save_resources
from beem_plugin.common.archive_files import BEST_WEIGHTS, CONFIG_NAME
from beem_plugin.common.files import write_json
from beem_plugin.common.registry import Params
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.evaluation.trace import trace_archive
from beem_plugin.execution.precision import PRECISIONS
from beem_plugin.models.model import Model

STEMS, SUFFIXES = 20000, 500
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CALIBRATION_SENTENCES = 200


def make_words(rng: random.Random, count: int, longest: int) -> list[str]:
    """Distinct made-up words."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, longest)))] = None
    return list(words)


def write_sentences(path: Path, count: int, stems: list[str], suffixes: list[str], seed: int) -> None:
    """One sentence a line: 3 to 66 tokens with [CLS] and [SEP], median 10, mean 13, as SST-2's training sentences."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            tokens = min(max(round(rng.lognormvariate(2.3026, 0.72)), 3), 66) - 2
            words = []
            while tokens:
                pieces = 2 if tokens > 1 and rng.random() < 0.2 else 1
                words.append(rng.choice(stems) + (rng.choice(suffixes) if pieces == 2 else ""))
                tokens -= pieces
            file.write(" ".join(words) + "\n")


def write_tokenizer(folder: Path, stems: list[str], suffixes: list[str]) -> int:
    """BERT's tokenizer with a vocabulary of its own; returns the size of that."""
    pieces = [*SPECIAL, *stems, *(f"##{suffix}" for suffix in suffixes)]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    ).save_pretrained(str(folder))
    return len(pieces)


def even_thresholds(logits: torch.Tensor) -> list[float]:
    """Thresholds of confidence by which equally many of the samples of `(samples, exits, labels)` exit at each exit."""
    confidence = logits.double().softmax(-1).amax(-1)
    exits = confidence.shape[1]
    thresholds: list[float] = []
    for number in range(exits - 1):
        ordered = confidence[:, number].sort(descending=True).values
        exiting = len(ordered) // (exits - number)
        thresholds.append(float((ordered[exiting - 1] + ordered[exiting]) / 2))
        confidence = confidence[confidence[:, number] < thresholds[-1]]
    return thresholds


def make_archive(folder: Path, shape: dict[str, Any], sentences: Path) -> Path:
    """An untrained archive by whose policy equally many of the sentences in a file exit at each exit."""
    run = folder / "run"
    run.mkdir()
    config: dict[str, Any] = {
        "dataset_reader": {
            "type": "text_classification",
            "tokenizer": {"model_name": str(folder / "tokenizer")},
            "label_names": ["no", "yes"],
            "label_field": None,
        },
        "train_data_path": str(sentences),
        "model": {
            "type": "multi_exit_classifier",
            "encoder": {"backbone": {"config": {"model_type": "bert", **shape}}},
            "exit_policy": {"type": "final"},
        },
        "data_loader": {"batch_size": 32},
    }
    reader = DatasetReader.from_params(Params(config["dataset_reader"]))
    vocab = Vocabulary(["no", "yes"])
    torch.manual_seed(0)
    model: Any = Model.from_params(Params(config["model"]), vocab=vocab)
    with torch.no_grad():
        for head in model.encoder.exits:  # so that samples differ in confidence
            head.classifier.weight.mul_(20)
    torch.save(model.state_dict(), run / BEST_WEIGHTS)
    save_resources(run, model, reader)
    vocab.save_to_files(run / "vocabulary")
    write_json(run / CONFIG_NAME, config)
    trace = trace_archive(load_archive(run), str(sentences))
    config["model"]["exit_policy"] = {"type": "max_probability", "thresholds": even_thresholds(trace.logits)}
    write_json(run / CONFIG_NAME, config)
    return archive_model(run)


def timed_command(archive: Path, source: Path, output: Path, options: list[str]) -> float:
    """Seconds of `allennlp predict` as a process of its own."""
    command = [sys.executable, "-m", "beem_plugin", "predict", str(archive), str(source), "--silent"]
    root = Path(__file__).resolve().parent.parent
    started = time.perf_counter()
    subprocess.run([*command, "--output-file", str(output), *options], check=True, cwd=root)
    return time.perf_counter() - started


def pipeline_rate(classify: Any, sentences: list[str], batch_size: int) -> float:
    """Sentences a second of transformers' pipeline; the first batches are not timed."""
    for _ in classify((text for text in sentences[: 2 * batch_size]), batch_size=batch_size):
        pass
    started = time.perf_counter()
    count = sum(1 for _ in classify((text for text in sentences), batch_size=batch_size))
    return count / (time.perf_counter() - started)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--pipeline-sentences", type=int, default=20_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32, 128, 512], help="of the pipeline")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--cuda-device", type=int, default=-1)
    parser.add_argument("--dtype", default="float32", choices=PRECISIONS)
    parser.add_argument("--folder", type=Path, help="where the archive and the files go (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="the figures, as JSON")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        result = run(args, args.folder or Path(temporary))
    print(json.dumps(result, indent=2))
    if args.output:
        write_json(args.output, result)
    return result


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    stems, suffixes = make_words(rng, STEMS, 9), make_words(rng, SUFFIXES, 3)
    whole, part, calibration = (folder / f"{name}.txt" for name in ("whole", "part", "calibration"))
    fewer = max(1, args.sentences // 10)
    write_sentences(whole, args.sentences, stems, suffixes, 1)
    write_sentences(part, fewer, stems, suffixes, 2)
    write_sentences(calibration, CALIBRATION_SENTENCES, stems, suffixes, 3)
    shape = {
        "vocab_size": write_tokenizer(folder / "tokenizer", stems, suffixes),
        "hidden_size": args.hidden_size,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "intermediate_size": 4 * args.hidden_size,
    }
    archive = make_archive(folder, shape, calibration)
    options = ["--cuda-device", str(args.cuda_device), "--dtype", args.dtype]
    output = folder / "predictions.jsonl"
    timed_command(archive, part, output, options)  # fills the caches of the disk and of compiled kernels
    short, long = (timed_command(archive, source, output, options) for source in (part, whole))
    with open(output, encoding="utf-8") as predictions:
        exits = [json.loads(line)["exit"] for line in predictions]
    rate = (args.sentences - fewer) / (long - short)

    backbone = load_archive(archive).model.encoder.backbone.transformer_model
    network = BertForSequenceClassification(backbone.config)
    network.bert.load_state_dict(backbone.state_dict(), strict=False)  # a pooler of its own
    classify = pipeline(
        "text-classification",
        model=network.eval().to(PRECISIONS[args.dtype]),
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        device=args.cuda_device,
    )
    sentences = whole.read_text(encoding="utf-8").splitlines()[: args.pipeline_sentences]
    rates = {size: pipeline_rate(classify, sentences, size) for size in args.batch_sizes}
    return {
        "sentences": args.sentences,
        "average_exit": sum(exits) / len(exits),
        "predict_sentences_per_second": rate,
        "predict_seconds": long,
        "start_up_seconds": short - fewer / rate,
        "pipeline_sentences_per_second": rates,
        "predict_over_pipeline": rate / max(rates.values()),
    }


if __name__ == "__main__":
    main()
