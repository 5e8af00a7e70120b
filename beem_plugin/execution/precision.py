"""The precision in which the layers compute."""

import warnings

import torch

from beem_plugin.common.errors import ConfigurationError, check_choice

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"
DTYPES = (*PRECISIONS, INT8)


def cast_network(network: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """
    Changes the precision of `network` in place and returns it. Exits are decided in the decision precision.

    `"int8"`, on the CPU only, keeps the weights of linear modules in 8 bits and quantizes their inputs as they come
    (dynamic quantization); everything else computes in float32. Outputs differ from those in float32 by more than
    rounding, so thresholds should be fitted again. Otherwise the parameters are cast. Buffers stay as they are, because
    tables such as rotary frequencies lose their meaning in half precision.
    """
    check_choice("dtype", dtype, DTYPES)
    if dtype == INT8:
        if any(parameter.device.type != "cpu" for parameter in network.parameters()):
            raise ConfigurationError("dtype: found int8 on a GPU, allowed: on the CPU; bfloat16 or float16 on a GPU")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch recommends torchao, which is another package
            torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    else:
        for parameter in network.parameters():
            parameter.data = parameter.data.to(PRECISIONS[dtype])
    network.dtype_name = dtype  # type: ignore[assignment]
    return network


def dtype_of(network: object) -> str:
    """The name of the precision that `cast_network` gave; float32 without."""
    return str(getattr(network, "dtype_name", "float32"))
