"""Greedy decoding with early exits, written again as plainly as possible: one caption, one word, one block."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models import MultiExitCaptioner
from tests.tiny_captioner import BOS, EOS


@torch.no_grad()
def slow_caption(
    model: MultiExitCaptioner, image: Tensor, rule: ExitPolicy, skipped: str, max_length: int
) -> tuple[list[int], list[int]]:
    """Words and exits. Every word's keys and values are made in every block at once, and kept in lists."""
    network, decoder = model.decoder, model.decoder.backbone.decoder
    rule.bind(network.exit_layers, network.num_labels)
    states = network.backbone.encode_images(image.unsqueeze(0))
    layers = range(1, decoder.num_layers + 1)
    stored: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}
    in_branches: dict[int, list[tuple[Tensor, Tensor]]] = {number: [] for number in range(1, network.num_exits + 1)}
    words = [BOS]
    exits: list[int] = []
    while len(exits) < max_length and (words[-1] != EOS or len(words) == 1):
        hidden = decoder.embed(torch.tensor([[words[-1]]]), len(words) - 1)
        memory: dict[str, Tensor] = {}
        state = rule.start(1, network.num_exits)
        left = None
        for layer in layers:
            previous = hidden
            if left is None or skipped == "recompute":
                query, key, value = decoder.project(layer, hidden)
                stored[layer].append((key, value))
                keys = torch.cat([pair[0] for pair in stored[layer]], 2)
                values = torch.cat([pair[1] for pair in stored[layer]], 2)
                cross = decoder.cross_keys_values(layer, states)
                hidden = decoder.block(layer, hidden, query, (keys, values), cross=cross)
            elif skipped == "propagate":
                stored[layer].append(decoder.keys_values(layer, hidden))
            else:
                stored[layer].append(stored[layer - 1][-1])
            if layer not in network.exit_layers:
                continue
            number = network.exit_layers.index(layer) + 1

            def store(key: Tensor, value: Tensor, before: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
                before.append((key, value))
                return torch.cat([pair[0] for pair in before], 2), torch.cat([pair[1] for pair in before], 2)

            read = network.exit_input(number, hidden, partial(store, before=in_branches[number]))[:, 0]
            if left is None:
                position = torch.tensor([len(exits)])
                signals = network.token_signals(number, hidden[:, 0], previous[:, 0], position, memory, read=read)
                leaves, state = rule.step(number, signals, state)
                if bool(leaves) or number == network.num_exits:
                    left = number
                    word = int(network.exit_logits(number, read, memory).argmax())
                elif network.remembers:
                    network.remember(number, read, memory)
        assert left is not None
        words.append(word)
        exits.append(left)
    return words[1:], exits
