"""Processes of a launcher (torchrun, accelerate launch), and the accelerator."""

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType

from beem_plugin.common.errors import ConfigurationError, check_choice
from beem_plugin.common.ranks import launched_processes
from beem_plugin.common.transfer import checked_device

PLAIN_KINDS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def join_processes(cuda_device: int | None = None) -> PartialState:
    """Connects the processes of the launcher; `cuda_device` is the trainer's, -1 for the CPU, and sets the backend."""
    # accelerate keeps this state for the life of the process; a second training may use another device.
    AcceleratorState._reset_state(reset_partial_state=True)
    return PartialState(cpu=cuda_device == -1)


def make_accelerator(
    cuda_device: int | None = None, mixed_precision: str = "no", find_unused_parameters: bool = False
) -> Accelerator:
    """The accelerator for these keys of `GradientDescentTrainer`; under a launcher only `cuda_device` -1 matters."""
    check_choice("trainer.mixed_precision", mixed_precision, ("no", "fp16", "bf16"))
    join_processes(cuda_device)
    if cuda_device not in (None, -1) and launched_processes() == 1:
        torch.cuda.set_device(checked_device("trainer.cuda_device", cuda_device))
    accelerator = Accelerator(
        cpu=cuda_device == -1,
        mixed_precision=mixed_precision,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=find_unused_parameters)],
    )
    if accelerator.distributed_type not in PLAIN_KINDS:
        raise ConfigurationError(
            f"the launcher asks for {accelerator.distributed_type.value}; this trainer runs with plain data "
            "parallelism (torchrun, or accelerate launch --multi_gpu / --cpu)"
        )
    if mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise ConfigurationError('trainer.mixed_precision: "fp16" (use_amp) needs a GPU; on the CPU use "bf16" or "no"')
    return accelerator
