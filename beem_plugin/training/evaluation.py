"""Batches of an epoch, and a model's loss and metrics on them: each sample counts once for any number of processes."""

import functools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor

from beem_plugin.common.progress import progress_bar
from beem_plugin.models.model import Model

logger = logging.getLogger(__name__)

PER_EXIT = re.compile(r"(^|_)exit_?\d+(_|$)")


class EpochPlan:
    """
    One epoch's batches in rounds: in round r, process p has batch `r * processes + p`. A process without a batch in the
    last round repeats the round's first, counted as 0 samples, so that all processes synchronize equally often.

    `data_loader` has `set_epoch(int)` and `torch_loader`, whose batch sampler's order is a pure function of the epoch.
    """

    def __init__(self, data_loader: Any, epoch: int, rank: int, num_processes: int) -> None:
        data_loader.set_epoch(epoch)
        self._loader: torch.utils.data.DataLoader = data_loader.torch_loader
        if self._loader.batch_sampler is None:
            raise TypeError("the data loader's torch_loader must have a batch sampler")
        self._batches = [list(batch) for batch in self._loader.batch_sampler]
        self.epoch = epoch
        self._rank = rank
        self._num_processes = num_processes

    def __len__(self) -> int:
        """The number of rounds."""
        return -(-len(self._batches) // self._num_processes)

    def samples(self, round_number: int) -> list[int]:
        """The number of samples of each process that count in this round."""
        first = round_number * self._num_processes
        counts = [len(batch) for batch in self._batches[first : first + self._num_processes]]
        return counts + [0] * (self._num_processes - len(counts))

    def batches(self, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """This process's batches from round `start` on; earlier ones are not read."""
        firsts = range(start * self._num_processes, len(self._batches), self._num_processes)
        rounds = (self._batches[first : first + self._num_processes] for first in firsts)
        mine = [batches[self._rank] if self._rank < len(batches) else batches[0] for batches in rounds]
        loader = self._loader
        extra: dict[str, Any] = {}
        if loader.num_workers > 0:
            extra = {name: getattr(loader, name) for name in ("multiprocessing_context", "prefetch_factor")}
        return iter(
            torch.utils.data.DataLoader(
                loader.dataset,
                batch_sampler=mine,
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                timeout=loader.timeout,
                # Without its own generator a loader draws from the global one, and a recovered run would differ.
                generator=torch.Generator().manual_seed(self.epoch),
                **extra,
            )
        )


def evaluate(
    model: Model,
    data_loader: Any,
    accelerator: Accelerator,
    description: str = "evaluation",
    max_rounds: int | None = None,
    prepared_model: torch.nn.Module | None = None,
) -> dict[str, float]:
    """
    The model's metrics, and `loss` if the model returns one, over all samples of all processes; the model is left in
    evaluation mode. `description` is that of the progress bar, which `""` hides; `max_rounds` limits the batches.
    """
    forward = prepared_model if prepared_model is not None else model
    forward.eval()
    model.eval()
    plan = EpochPlan(data_loader, 0, accelerator.process_index, accelerator.num_processes)
    rounds = len(plan) if max_rounds is None else min(max_rounds, len(plan))
    loss_sum, units = 0.0, 0
    model.get_metrics(reset=True)
    hidden = not description or not accelerator.is_main_process
    with torch.no_grad(), progress_bar(rounds, description, disable=hidden) as bar:
        for number, read in zip(range(rounds), plan.batches()):
            counts = plan.samples(number)
            weights = loss_units(model, read, counts, accelerator)
            batch = send_to_device(read, accelerator.device)
            # `forward` may update metrics, but not with a batch that another process counts.
            with metrics_unchanged(model, counts[accelerator.process_index] == 0):
                outputs = forward(**batch)
            if outputs.get("loss") is not None:
                loss_sum += weighted_loss(outputs["loss"], weights, accelerator)
                units += sum(weights)
            _update_metrics(model, outputs, batch, counts, accelerator)
            bar.update()
        if _updates_metrics_itself(model):
            merge_metrics(model, accelerator)
        # Plain numbers: a checkpoint with numpy's cannot be loaded with `weights_only=True`.
        metrics = {name: float(value) for name, value in model.get_metrics(reset=True).items()}
        if units:
            metrics = {"loss": loss_sum / units, **metrics}
        bar.set_description(description_from_metrics(metrics) or description)
    return metrics


def loss_units(model: Model, batch: dict[str, Tensor], counts: list[int], accelerator: Accelerator) -> list[int]:
    """The units that each process's loss is a mean over, 0 for a repeated batch; `batch` is on the host."""
    own = model.loss_units(batch)
    if own is None:
        return counts
    units = accelerator.gather(torch.tensor([own], device=accelerator.device)).tolist()
    return [number if count else 0 for number, count in zip(units, counts, strict=True)]


def weighted_loss(loss: Tensor, counts: list[int], accelerator: Accelerator) -> float:
    """The sum over processes of mean loss times units, without repeated batches."""
    losses = accelerator.gather(loss.detach().double().reshape(1)).tolist()
    return sum(value * count for value, count in zip(losses, counts, strict=True) if count)


@contextmanager
def metrics_unchanged(model: Model, when: bool = True) -> Iterator[None]:
    """Restores the model's running metrics after the block, if `when` is true and the model has a `metric_state`."""
    state = model.metric_state() if when else None
    try:
        yield
    finally:
        if state is not None:
            model.load_metric_state(state)


def merge_metrics(model: Model, accelerator: Accelerator, which: str = "") -> None:
    """Replaces the running metrics of every process by the sum over all processes; `which` is for the warning."""
    if accelerator.num_processes == 1:
        return
    state = model.metric_state()
    if state is None:
        logger.warning("%s has no metric_state: its %smetrics are those of one process", type(model).__name__, which)
        return
    model.load_metric_state(merge_metric_states(gather_object([state])))


def merge_metric_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of metric states: lists are joined, numbers and tensors added, dictionaries merged."""
    return functools.reduce(_add, states)


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {**a, **b, **{name: _add(a[name], b[name]) for name in a if name in b}}
    return a + b


def _updates_metrics_itself(model: Model) -> bool:
    """Whether `forward` updates the metrics in evaluation, as in AllenNLP, with this process's samples only."""
    return type(model).update_metrics is Model.update_metrics


def _update_metrics(
    model: Model, outputs: dict[str, Any], batch: dict[str, Tensor], counts: list[int], accelerator: Accelerator
) -> None:
    """Passes the samples of all processes, in the order of the data, to the model's metrics."""
    label, logits = batch.get("label"), outputs.get("logits")
    if label is None or logits is None or _updates_metrics_itself(model):
        return
    model.update_metrics(_gather(logits, counts, accelerator), _gather(label, counts, accelerator))


def _gather(tensor: Tensor, counts: list[int], accelerator: Accelerator) -> Tensor:
    if accelerator.num_processes == 1:
        return tensor
    gathered = accelerator.gather(accelerator.pad_across_processes(tensor))
    return torch.cat([part[:count] for part, count in zip(gathered.chunk(len(counts)), counts, strict=True)])


def description_from_metrics(metrics: dict[str, float]) -> str:
    """The metrics for the bar, without those of single exits and those whose names begin with "_"."""
    shown = {name: value for name, value in metrics.items() if not name.startswith("_") and not PER_EXIT.search(name)}
    return ", ".join(f"{name}: {value:.4f}" for name, value in shown.items())
