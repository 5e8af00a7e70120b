"""The ordinary head is computed without its modules only where nobody would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from beem_plugin.execution import Compaction, DepthPools, Single
from beem_plugin.execution.pooled_heads import head_weights
from beem_plugin.exits.policies import Final
from tests.execution.worlds import World, check, make_batches

PARTS: list[Callable[[Any], torch.nn.Module]] = [
    lambda head: head,
    lambda head: head.pooler,
    lambda head: head.pooler.dense,
    lambda head: head.dropout,
    lambda head: head.classifier,
]


@pytest.mark.parametrize("part", PARTS)
def test_heads_that_somebody_listens_to_are_called(part: Callable[[Any], torch.nn.Module]) -> None:
    world = World()
    module = part(world.exits[1])

    def is_computed() -> bool:
        return head_weights(world, 2, Final()) is not None

    assert is_computed()
    for register in (module.register_forward_hook, module.register_forward_pre_hook, register_module_forward_hook):
        handle = register(lambda *_: None)
        assert not is_computed()
        handle.remove()
        assert is_computed()
    module.forward = module.forward  # type: ignore[method-assign]
    assert not is_computed()


def test_engines_say_what_a_hook_says() -> None:
    world, batches = World(), make_batches(8, 4)
    for engine in (Single(), Compaction(), DepthPools()):
        check(engine, world, Final(), batches)
        handle = world.exits[3].classifier.register_forward_hook(lambda module, given, said: said.flip(1))
        check(engine, world, Final(), batches)
        handle.remove()
