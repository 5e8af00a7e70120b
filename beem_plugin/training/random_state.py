"""Seeds at the start, and the state of every random generator in a checkpoint."""

import random
from typing import Any

import numpy
import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.registry import Params
from beem_plugin.common.values import describe_value


def prepare_environment(params: Params) -> None:
    """Removes the seeds from a config and seeds the generators; `null` does not seed. The defaults are AllenNLP's."""
    for key, default, set_seed in (
        ("random_seed", 13370, random.seed),
        ("numpy_seed", 1337, numpy.random.seed),
        ("pytorch_seed", 133, torch.manual_seed),
    ):
        seed = params.pop(key, default)
        if seed is None:
            continue
        if isinstance(seed, bool) or not isinstance(seed, int | float) or seed not in range(2**32):
            found = describe_value(seed.as_dict(quiet=True) if isinstance(seed, Params) else seed)
            raise ConfigurationError(f"{key}: found {found}, allowed: a whole number below 2**32, or null")
        set_seed(int(seed))


def separate_ranks(rank: int) -> None:
    """Makes the random numbers of processes differ after the model is built, so that their dropout differs."""
    if rank == 0:
        return
    random.seed(random.randrange(2**32) + rank)
    numpy.random.seed((int(numpy.random.randint(2**31)) + rank) % 2**32)
    torch.manual_seed(torch.initial_seed() + rank)


def get_random_state() -> dict[str, Any]:
    """The generators' states as plain values and tensors, which `torch.load(..., weights_only=True)` accepts."""
    state: Any = numpy.random.get_state(legacy=True)
    kind, keys, position, has_gauss, gauss = state
    return {
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """The inverse of `get_random_state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
