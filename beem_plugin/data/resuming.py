"""Going on in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import skip_first_batches


def skip_batches(prepared: Any, num_batches: int) -> Any:
    """
    The rest of the current epoch of a loader that accelerate has prepared.

    # Parameters

    prepared : `torch.utils.data.DataLoader`
        What `accelerator.prepare` returned, after its own `set_epoch`.
    num_batches : `int`
        Batches already seen by each process.
    """
    rest = skip_first_batches(prepared, num_batches)
    if getattr(prepared.batch_sampler, "batch_size", None) is not None:
        # accelerate forgets the batch size here, and with it how many rows of the last batch are repeats that
        # `gather_for_metrics` must drop.
        rest.batch_sampler.batch_size = prepared.total_batch_size
    return rest
