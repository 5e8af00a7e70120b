"""The weights of a written graph in fewer bits. Results differ, so policies are to be fitted afterwards."""

import logging
import math
from pathlib import Path

import torch

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.execution.onnx.graph import missing_extra
from beem_plugin.execution.precision import INT8, PRECISIONS

SMALLEST = 1024
"""Constants of fewer numbers stay in float32."""


def store_weights(path: Path, dtype: str) -> None:
    """Replaces a float32 graph by one whose weights are stored in `dtype`."""
    if dtype == INT8:
        quantize(path)
    elif dtype != "float32":
        store_half(path, dtype)


def quantize(path: Path) -> None:
    """Dynamic quantization: weights of matrix products in 8 bits, their inputs quantized as they come."""
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise missing_extra(error) from error
    full, root = path.with_suffix(".float32"), logging.getLogger()
    level = root.level
    path.rename(full)
    try:
        root.setLevel(logging.ERROR)  # it recommends steps that change nothing here
        # One bit of the weights is left out: sums of two products must not overflow on processors without VNNI.
        quantize_dynamic(full, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    finally:
        root.setLevel(level)
        full.unlink()


def store_half(path: Path, dtype: str) -> None:
    """
    Weights in bfloat16 or float16, each with a cast to float32, in which the graph computes: onnxruntime has no
    products in half precision for most processors. It does the casts once, when a graph is opened.
    """
    import onnx

    model = onnx.load(path)
    casts = []
    for weight in model.graph.initializer:
        if weight.data_type != onnx.TensorProto.FLOAT or math.prod(weight.dims) < SMALLEST:
            continue
        name, shape = weight.name, list(weight.dims)
        stored = torch.tensor(onnx.numpy_helper.to_array(weight)).to(PRECISIONS[dtype])
        if not stored.isfinite().all():
            raise ConfigurationError(f"dtype: found {dtype}, in which {name} is not finite, allowed: bfloat16")
        weight.Clear()
        weight.name, weight.data_type = f"{name}_{dtype}", getattr(onnx.TensorProto, dtype.upper())
        weight.dims.extend(shape)
        weight.raw_data = stored.view(torch.int16).numpy().astype("<i2").tobytes()
        casts.append(onnx.helper.make_node("Cast", [weight.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    onnx.save(model, path)
