"""The precision in which the layers compute."""

from __future__ import annotations

import torch

from beem_plugin.common.errors import ConfigurationError, not_allowed

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def cast_network(network: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """
    Casts the parameters of `network` in place and returns it. Buffers stay as they are, because tables such as rotary
    frequencies lose their meaning in half precision. Exits are decided in the decision precision all the same.
    """
    if dtype not in PRECISIONS:
        raise ConfigurationError(not_allowed("dtype", dtype, PRECISIONS))
    for parameter in network.parameters():
        parameter.data = parameter.data.to(PRECISIONS[dtype])
    return network
