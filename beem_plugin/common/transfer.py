"""Devices, and copies between host and device that do not wait for work already queued on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError


def checked_device(key: str, number: int) -> torch.device:
    """The CPU for -1, or a GPU; raises a `ConfigurationError` that names `key` if there is no such one."""
    if not -1 <= number < torch.cuda.device_count():
        allowed = f"allowed: -1 (the CPU) or a number below the count of GPUs, {torch.cuda.device_count()}"
        raise ConfigurationError(f"{key}: found {number}, {allowed}")
    return torch.device("cpu") if number == -1 else torch.device("cuda", number)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, pinned: copies from pageable memory above 64 KiB synchronise with the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def all_to_device(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Several one-dimensional tensors of one dtype on `device`, in a single copy."""
    if device.type != "cuda":
        return tuple(tensor.to(device) for tensor in tensors)
    return to_device(torch.cat(list(tensors)), device).split([len(tensor) for tensor in tensors])


class HostCopy:
    """A copy of a tensor on the host. On a GPU it is started here and waited for in `read`."""

    def __init__(self, tensor: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.tensor = tensor.cpu()

    def read(self) -> Tensor:
        if self.event is not None:
            self.event.synchronize()
        return self.tensor
