#!/usr/bin/env python
"""
Peak memory and time of a training step: the decoder alone, all exits with their logits at once, all exits in chunks.

Each case runs in a process of its own, so that none inherits another's memory. On a GPU the peak is what the allocator
had in use; on a CPU what the process had resident, less what it had before the first step.

    python scripts/caption_memory.py                     # a GPT-2-small decoder (12 blocks, 50,257 words)
    python scripts/caption_memory.py --layers 6 --words 8000 --batch 8
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CASES = ("plain", "all exits at once", "all exits in chunks")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--words", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--chunk-elements", type=int, default=2**24)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    plain: dict[str, Any] | None = None
    failed = 0
    for case in args.cases:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=report, args=(case, args, sender))
        process.start()
        sender.close()
        try:
            found = receiver.recv()
        except EOFError:
            process.join()
            found = {"case": case, "failed": ending(process.exitcode or 0)}
        process.join()
        failed += "failed" in found
        plain = plain or found
        if "peak_mib" in found and "peak_mib" in plain:
            found["peak_over_plain"] = round(found["peak_mib"] / plain["peak_mib"], 2)
        print(json.dumps(found), flush=True)
    return 1 if failed else 0


def ending(code: int) -> str:
    """Why a process ended that could not say it itself."""
    if code >= 0:
        return f"the process ended with code {code} before it had measured anything"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{memory}"


def report(case: str, args: argparse.Namespace, sender: Any) -> None:
    from beem_plugin.common.errors import BeemError

    try:
        found = run(case, args)
    except Exception as error:
        lines = str(error).strip().splitlines()[:1]
        kind = [] if lines and isinstance(error, BeemError) else [type(error).__name__]
        found = {"case": case, "failed": ": ".join([*kind, *lines])}
    sender.send(found)
    sender.close()


def run(case: str, args: argparse.Namespace) -> dict[str, Any]:
    from beem_plugin import components  # noqa: F401  registers everything
    from beem_plugin.data import Vocabulary
    from beem_plugin.models import Model

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    gpt2 = {"model_type": "gpt2", "n_embd": args.hidden, "n_layer": args.layers, "n_head": args.hidden // 64}
    vit = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    vit |= {"intermediate_size": 64, "image_size": 32}
    exits = [args.layers] if case == "plain" else None
    tokenizer = SimpleNamespace(bos_token_id=0, eos_token_id=1, vocab_size=args.words)
    decoder = {"backbone": {"encoder": vit, "decoder": gpt2}, "exit_layers": exits}
    config = {"type": "multi_exit_captioner", "decoder": decoder, "chunk_elements": args.chunk_elements}
    model: Any = Model.from_params(config, vocab=Vocabulary([]), tokenizer=tokenizer).to(args.device).train()
    ids = torch.randint(2, args.words, (args.batch, args.tokens + 1), device=args.device)
    pixels = torch.randn(args.batch, 3, 32, 32, device=args.device)
    is_gpu = args.device.startswith("cuda")

    def step() -> None:
        if case == "all exits in chunks":
            loss = model(ids, torch.ones_like(ids), pixels)["loss"]
        else:
            loss = at_once(model, ids, pixels)
        loss.backward()
        model.zero_grad(set_to_none=True)
        if is_gpu:
            torch.cuda.synchronize()

    before = 0 if is_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(3):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if is_gpu:
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    found = {"case": case, "exits": model.num_exits, "peak_mib": round(peak), "seconds_a_step": round(min(times), 3)}
    return {**found, "device": args.device, "words_a_step": args.batch * args.tokens}


def at_once(model: Any, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """The loss as it is written down: all logits, then the objective."""
    states = model.decoder.image_states({"pixel_values": pixels})
    target = ids[:, 1:].flatten()
    logits = [
        model.decoder.exit_logits(number, hidden.flatten(0, 1))
        for number, hidden, _ in model.decoder.exit_states(ids[:, :-1], states)
    ]
    if len(logits) == 1:
        return functional.cross_entropy(logits[0], target)
    return model.objective(torch.stack(logits, 1), target)["loss"]


if __name__ == "__main__":
    sys.exit(main())
