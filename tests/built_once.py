"""Random models that many tests build: a copy takes a few milliseconds, a tenth of the time of a new one."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

M = TypeVar("M", bound=torch.nn.Module)


class _Pickler(pickle.Pickler):
    """Keeps tensors apart, in `tensors`. `copy.deepcopy` takes as long as to build the module."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Tensor] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors[id(value)] = value
        return id(value)


class _Built:
    def __init__(self, model: torch.nn.Module) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(model)
        self.pickled, self.tensors, self.generator = file.getvalue(), pickler.tensors, torch.get_rng_state()

    def copied(self) -> Any:
        tensors = {number: copy.deepcopy(tensor) for number, tensor in self.tensors.items()}
        unpickler = pickle.Unpickler(io.BytesIO(self.pickled))
        unpickler.persistent_load = tensors.__getitem__  # type: ignore[method-assign]
        torch.set_rng_state(self.generator)
        return unpickler.load()


_built: dict[tuple[Any, str], _Built] = {}


def built_once(build: Callable[..., M], **config: Any) -> M:
    """`build(**config)`, and torch's generator as that leaves it; a copy if `config` is plain data."""
    try:
        key = build, json.dumps(config)
    except TypeError:
        return build(**config)
    if key not in _built:
        _built[key] = _Built(build(**config))
    return _built[key].copied()
