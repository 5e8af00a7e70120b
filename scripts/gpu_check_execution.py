"""
Checks the engines on a GPU and measures them: a random model in BERT's shape in half precision, a BEEM policy under
which given shares of the samples exit at each exit, and random tokens of SST-2's lengths.

    python scripts/gpu_check_execution.py [--shape base|small|tiny] [--device cuda|cpu] [--output F.json]
    python scripts/gpu_check_execution.py --against /path/to/another/release [--rounds 3]
    python scripts/gpu_check_execution.py --package-root /path/to/another/release

Prints whether every engine gives the exits of a layer-by-layer reference in three precisions, the times at batch size
1, for batches of 64 and for a file in several variants of the engines, and how long the GPU is idle. With `--against`,
the two releases are measured in turns, in processes of their own, and a table compares them.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(
    0,
    sys.argv[sys.argv.index("--package-root") + 1]
    if "--package-root" in sys.argv
    else str(Path(__file__).resolve().parent.parent),
)

import torch
from torch import Tensor

import beem_plugin.components  # noqa: F401
from beem_plugin.backbones import Backbone
from beem_plugin.common.registry import Params
from beem_plugin.execution import Engine
from beem_plugin.execution.engine import gather_decisions
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Beem, Final
from beem_plugin.models.multi_exit_encoder import MultiExitEncoder

try:
    from beem_plugin.data.ragged_batch import RaggedBatch
    from beem_plugin.execution.metering.baselines import FullDepth, NeverExits
except ImportError:  # release 0.1 takes padded batches
    from beem_plugin.execution.baselines import FullDepth, NeverLeaves as NeverExits

    RaggedBatch = None  # type: ignore[assignment,misc]


def ragged_batches(batches: Iterable[dict[str, Tensor]]) -> Any:
    """Batches with an index as the engines of the release take them."""
    if RaggedBatch is None:
        return batches
    made = []
    for batch in batches:
        mask = batch["attention_mask"].bool()
        lengths = mask.sum(1)
        tokens = {"input_ids": batch["input_ids"][mask]}
        made.append(RaggedBatch(tokens, lengths.cumsum(0) - lengths, lengths, batch["index"]))
    return made


ROOT = sys.path[0]
SHAPES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 128},
}
# Exiting at exits 1, 2, ... of 12: about BEEM's shape on SST-2, a layer speed-up of 2.0.
SHARES = [0.0, 0.02, 0.08, 0.18, 0.25, 0.17, 0.10, 0.06, 0.04, 0.03, 0.02, 0.05]
CHECKED: dict[str, dict[str, Any]] = {
    "single": {"type": "single"},
    "single, every 3": {"type": "single", "check_every": 3},
    "single, plain heads": {"type": "single", "heads": "plain"},
    "single, no lookahead": {"type": "single", "lookahead": False},
    "compaction": {"type": "compaction"},
    "depth_pools": {"type": "depth_pools"},
    "depth_pools, small chunks": {"type": "depth_pools", "tokens_per_chunk": 1024, "window_tokens": 4096},
    "depth_pools, no kernels": {"type": "depth_pools", "use_kernels": False},
}
SINGLE: dict[str, dict[str, Any]] = {
    "single": {},
    "single, every 2": {"check_every": 2},
    "single, plain": {"heads": "plain"},
}
POOLS: dict[str, dict[str, Any]] = {
    "depth_pools": {},
    "depth_pools, chunks 32768": {"tokens_per_chunk": 32768, "window_tokens": 524288},
    "depth_pools, 2 windows": {"windows_in_flight": 2},
    "depth_pools, 3 windows": {"windows_in_flight": 3},
    "depth_pools, calls of 4096": {"call_tokens": 4096},
    "depth_pools, min_leaving 0.05": {"min_leaving": 0.05},
    "depth_pools, min_leaving 0.1": {"min_leaving": 0.1},
}
OTHER_EXITS = {"float32": 0.0, "float16": 0.02, "bfloat16": 0.1}
"""The share of samples that rounding may move to another exit."""
results: dict[str, Any] = {}
Case = Callable[[], Iterable[Any]]


class Subject:
    """The network that is measured, and its inputs."""

    def __init__(self, shape: str, device: torch.device) -> None:
        self.device = device
        torch.manual_seed(0)
        config = {"model_type": "bert", "vocab_size": 30522, **SHAPES[shape]}
        self.network = MultiExitEncoder(2, Backbone.from_params(Params({"config": config}))).eval()
        with torch.no_grad():
            for head in self.network.exits:
                head.classifier.weight.mul_(20)

    def in_precision(self, dtype: str) -> MultiExitEncoder:
        network: MultiExitEncoder = cast_network(copy.deepcopy(self.network), dtype).to(self.device)
        return network

    @torch.inference_mode()
    def policy_and_exits(self, network: MultiExitEncoder, batches: list[dict[str, Tensor]]) -> tuple[Beem, Tensor]:
        """A policy under which `SHARES` of the samples exit, and the exits that it gives, in input order."""
        logits, index = [], []
        for batch in batches:
            state = network.embed({k: v.to(self.device) for k, v in batch.items() if k != "index"})
            rows = []
            for number in range(1, network.num_exits + 1):
                state = network.advance(number, state)
                rows.append(network.exit_signals(number, state).logits)
            logits.append(torch.stack(rows, 1).cpu())
            index.append(batch["index"])
        return make_policy(torch.cat(logits)[torch.cat(index).argsort()])


def make_policy(logits: Tensor) -> tuple[Beem, Tensor]:
    """From logits `(samples, exits, labels)`: the policy, and each sample's exit."""
    samples, exits, labels = logits.shape
    shares = SHARES if exits == len(SHARES) else [1 / exits] * exits
    weights = [0.1 * number for number in range(1, exits + 1)]
    confidence, label = logits.double().log_softmax(-1).exp().max(-1)
    score = torch.zeros(samples, dtype=torch.float64)
    thresholds: list[float | str] = []
    taken = torch.full((samples,), exits)
    for number in range(1, exits + 1):
        vote = weights[number - 1] * confidence[:, number - 1]
        agrees = label[:, number - 1] == label[:, max(0, number - 2)]
        score = torch.where(agrees & torch.tensor(number > 1), score + vote, vote)
        active = taken == exits
        leaving = round(shares[number - 1] * samples)
        present = score[active].sort(descending=True).values
        if number == exits:
            break
        if leaving == 0 or leaving >= len(present):
            thresholds.append("never")
            continue
        threshold = float((present[leaving - 1] + present[leaving]) / 2)  # between two samples, clear of rounding
        thresholds.append(threshold)
        taken[active & (score >= threshold)] = number
    policy = Beem(thresholds=thresholds, weights=weights)
    policy.bind(list(range(1, exits + 1)), labels)
    return policy, taken


def sentence_lengths(count: int) -> Tensor:
    """Median 10 and mean 13 tokens, from 3 to 66, as SST-2's training sentences."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return (10 * (0.72 * normal).exp()).round().clamp(3, 66).long()


def make_batches(lengths: Tensor, size: int) -> list[dict[str, Tensor]]:
    """Random tokens in batches of samples of about the same length, shuffled."""
    order = lengths.argsort(stable=True)
    starts = torch.arange(0, len(lengths), size)
    batches = []
    for start in starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(2))].tolist():
        index = order[start : start + size]
        width = int(lengths[index].max())
        mask = (torch.arange(width) < lengths[index, None]).long()
        # A sample's tokens depend on its index alone: every batch size has the same samples.
        tokens = 1000 + (index[:, None] * 7919 + torch.arange(width) * 104729) % 29000
        batches.append({"input_ids": tokens * mask, "attention_mask": mask, "index": index})
    return batches


@torch.inference_mode()
def run_plain(network: MultiExitEncoder, batches: list[dict[str, Tensor]], device: torch.device) -> Iterable[Any]:
    """The transformers model, called batch by batch, with the last exit's classifier."""
    for batch in batches:
        inputs = {name: value.to(device) for name, value in batch.items() if name != "index"}
        hidden = network.backbone.transformer_model(**inputs).last_hidden_state
        head: Any = network.exits[-1]
        yield head.classifier(head.pooler(hidden, inputs["attention_mask"].bool())).argmax(-1).cpu()


def engine_cases(network: MultiExitEncoder, policy: Beem, config: dict[str, Any], batches: Any) -> dict[str, Case]:
    """The engine with exits, at full depth, and with exits that no sample takes, on an engine object each."""
    engines = [Engine.from_params(dict(config)) for _ in range(3)]
    full, given = FullDepth(network), list(ragged_batches(batches))
    return {
        "exits": lambda: engines[0].run(network, policy, given),
        "full depth": lambda: engines[1].run(full, Final(), given),
        "no sample exits": lambda: engines[2].run(network, NeverExits(policy), given),
    }


def measure(cases: dict[str, Case], repeats: int, samples: int, device: torch.device) -> dict[str, float]:
    """Milliseconds a sample: the median of `repeats` runs, the cases in turns, after two runs each."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 2):
        for name, case in cases.items():
            start = time.perf_counter()
            for _ in case():
                pass
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    found = {name: 1000 * statistics.median(values) / samples for name, values in seconds.items()}
    for name, value in found.items():
        print(f"   {name:48s} {value:9.4f} ms a sample {1000 / value:12.0f} samples/s", flush=True)
    return found


def check_equality(subject: Subject, dtype: str, samples: int) -> dict[str, Any]:
    network = subject.in_precision(dtype)
    lengths = sentence_lengths(samples)
    policy, expected = subject.policy_and_exits(network, make_batches(lengths, 1))
    given = list(ragged_batches(make_batches(lengths, 16)))
    found: dict[str, Any] = {}
    for name, config in CHECKED.items():
        engine = Engine.from_params(dict(config))
        for turn in ("first", "again"):
            _, decisions = gather_decisions(engine.run(network, policy, given), network.num_labels, samples)
            other = int((decisions.exits != expected).sum())
            found[f"{name}, {turn}"] = other
            print(f"   {name:28s} {turn:6s} other exits {other:4d} of {samples}", flush=True)
            if other > OTHER_EXITS[dtype] * samples:
                found["failed"] = name
    return found


def latency(subject: Subject, dtype: str, tokens: int, samples: int, repeats: int) -> dict[str, float]:
    network, batches = subject.in_precision(dtype), make_batches(torch.full((samples,), tokens), 1)
    policy, exits = subject.policy_and_exits(network, batches)
    print(f"   counted layer speed-up {network.num_exits / float(exits.float().mean()):.3f}")
    cases: dict[str, Case] = {"transformers": partial(run_plain, network, batches, subject.device)}
    for name, options in SINGLE.items():
        made = engine_cases(network, policy, {"type": "single", "max_lengths": 64, **options}, batches)
        cases |= {f"{name}, {kind}": case for kind, case in made.items()}
    return measure(cases, repeats, samples, subject.device)


def throughput(subject: Subject, dtype: str, samples: int, repeats: int, of_file: bool) -> dict[str, float]:
    """Of a file as a whole, or of `compaction` in batches of 64."""
    network, lengths = subject.in_precision(dtype), sentence_lengths(samples)
    policy, exits = subject.policy_and_exits(network, make_batches(lengths, 256))
    speedup = float(lengths.sum() * network.num_exits / (lengths * exits).sum())
    print(f"   counted layer speed-up, by tokens, {speedup:.3f}")
    cases: dict[str, Case] = {}
    if not of_file:
        made = engine_cases(network, policy, {"type": "compaction"}, make_batches(lengths, 64))
        cases = {f"compaction 64, {name}": case for name, case in made.items()}
        return measure(cases, repeats, samples, subject.device)
    for size in (256, 1024):
        given = make_batches(lengths, size)
        cases[f"transformers, batch {size}"] = partial(run_plain, network, given, subject.device)
    batches = make_batches(lengths, 256)
    for name, options in POOLS.items():
        made = engine_cases(network, policy, {"type": "depth_pools", **options}, batches)
        cases |= {f"{name}, {kind}": case for kind, case in made.items() if not options or kind == "exits"}
    return measure(cases, repeats, samples, subject.device)


def gpu_use(subject: Subject, dtype: str, engine: str, samples: int) -> dict[str, float]:
    """How long the GPU is busy and idle, and the kernels that take longest."""
    from torch.profiler import ProfilerActivity, profile

    network = subject.in_precision(dtype)
    is_single = engine == "single"
    lengths = torch.full((100,), 32) if is_single else sentence_lengths(samples)
    batches = make_batches(lengths, 1 if is_single else 256)
    policy, _ = subject.policy_and_exits(network, batches)
    case = engine_cases(network, policy, {"type": engine}, batches)["exits"]
    for _ in range(2):
        list(case())
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        list(case())
        torch.cuda.synchronize(subject.device)
    events = [one for one in profiler.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((one.time_range.start, one.time_range.end) for one in events)
    if not spans:
        return {}
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    by_name: dict[str, float] = {}
    for one in events:
        by_name[one.name[:60]] = by_name.get(one.name[:60], 0.0) + one.time_range.elapsed_us()
    found = {"busy": busy / 1000 / len(lengths), "idle": (reached - spans[0][0] - busy) / 1000 / len(lengths)}
    longest = sorted(by_name.items(), key=lambda pair: -pair[1])[:12]
    found |= {name: value / 1000 / len(lengths) for name, value in longest}
    for name, value in found.items():
        print(f"   {name:62s} {value:9.5f} ms a sample", flush=True)
    return found


def run_all(args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    subject = Subject(args.shape, device)
    half = "float16" if device.type == "cuda" else "float32"
    parts: dict[str, Callable[[], Any]] = {}
    for dtype in ("float32", "float16", "bfloat16") if device.type == "cuda" else ("float32",):
        parts[f"equality, {dtype}"] = partial(check_equality, subject, dtype, args.checked)
    for tokens in (32, 128):
        parts[f"batch 1, {tokens} tokens"] = partial(latency, subject, half, tokens, args.samples, args.repeats)
    for title in ("batches of 64", "file"):
        parts[title] = partial(throughput, subject, half, args.sentences, args.repeats, title == "file")
    for engine in ("single", "depth_pools") if device.type == "cuda" else ():
        parts[f"GPU use, {engine}"] = partial(gpu_use, subject, half, engine, args.sentences)
    chosen = {title: work for title, work in parts.items() if args.only in title}
    if not chosen:
        sys.exit(f"error: --only: found {args.only!r}, allowed: a part of one of {', '.join(parts)}")
    for title, work in chosen.items():
        print(f"\n== {title}", flush=True)
        try:
            results[title] = work()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            results[title] = {"failed": traceback.format_exc().splitlines()[-1]}
        if args.output:
            Path(args.output).write_text(json.dumps(results, indent=2))


def compare(args: argparse.Namespace) -> None:
    """Runs both releases in turns and prints a row for each case that both have."""
    names = ("shape", "device", "only", "repeats", "samples", "sentences", "checked")
    options = [f"--{name}={getattr(args, name)}" for name in names]
    found: dict[str, list[dict[str, Any]]] = {args.against: [], ROOT: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            for root, runs in found.items():
                output = Path(folder) / f"{turn}-{len(runs)}-{Path(root).name}.json"
                command = [sys.executable, __file__, "--package-root", root, "--output", str(output), *options]
                print(f"\n#### round {turn + 1}: {root}", flush=True)
                status = subprocess.run(command, check=False).returncode
                if not output.is_file():
                    sys.exit(f"error: {root}: no part ended (exit status {status})")
                runs.append(json.loads(output.read_text()))
                broken = {f"{title}, {root}": part for title, part in runs[-1].items() if "failed" in part}
                results.update(broken)
    print(f"\n{'milliseconds a sample, median of rounds':72s} {'other':>9s} {'this':>9s}  this/other")
    for title, cases in found[ROOT][0].items():
        for name in cases if title.startswith(("batch", "file")) else ():
            values = [[run.get(title, {}).get(name) for run in runs] for runs in found.values()]
            known = [[value for value in side if isinstance(value, float)] for side in values]
            if all(known):
                other, this = map(statistics.median, known)
                print(f"{title + ': ' + name:72s} {other:9.4f} {this:9.4f}  {this / other:6.3f}")
                results[f"{title}: {name}"] = {"other": other, "this": this}
    if args.output:
        Path(args.output).write_text(json.dumps(results, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and measure the engines on one device.")
    parser.add_argument("--shape", choices=list(SHAPES), default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--package-root", help="measure the package in this folder in place of this checkout's")
    parser.add_argument("--against", help="measure the package in this folder, too, in turns, and compare")
    parser.add_argument("--rounds", type=int, default=2, help="with --against")
    parser.add_argument("--checked", type=int, default=256, help="samples whose exits are compared")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100, help="at batch size 1")
    parser.add_argument("--sentences", type=int, default=200000, help="of the file")
    parser.add_argument("--only", default="", help="only parts whose name contains this")
    parser.add_argument("--output", help="a JSON file for the figures")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    print(f"{name}, torch {torch.__version__}, BERT shape {args.shape}, {torch.get_num_threads()} threads, {ROOT}")
    compare(args) if args.against else run_all(args)
    failed = [title for title, found in results.items() if isinstance(found, dict) and "failed" in found]
    print(f"\nfailed: {failed or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
