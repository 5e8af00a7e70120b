"""`allennlp find-lr`: the training loss while the learning rate rises (Smith 2017)."""

import argparse
import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.files import write_json
from beem_plugin.common.params import load_config
from beem_plugin.common.ranks import launched_rank
from beem_plugin.common.registry import Params
from beem_plugin.rendering.plots import BLUE, LIGHT, new_figure, plots_available, save_figure
from beem_plugin.training.callbacks.callback import TrainerCallback
from beem_plugin.training.epoch import train_epoch
from beem_plugin.training.learning_rate_schedulers import CurveScheduler
from beem_plugin.training.staged_trainer import StagedTrainer
from beem_plugin.training.train import built_run
from beem_plugin.training.trainer import RunningTrainer, TrainingError

NAME = "lr-losses"
SMOOTHING = 0.98
FEWEST = 10


class LossRecorder(TrainerCallback):
    """Records learning rate and loss of every step, and ends the training by a `TrainingError`."""

    def __init__(self, serialization_dir: Path, num_batches: int, stopping_factor: float | None) -> None:
        super().__init__(serialization_dir)
        self.num_batches, self.stopping_factor = num_batches, stopping_factor
        self.rates: list[float] = []
        self.losses: list[float] = []

    def on_batch(self, trainer: RunningTrainer, batch_metrics: dict[str, Any], **kwargs: Any) -> None:
        loss = batch_metrics["batch_loss"]
        if self.stopping_factor and len(self.losses) > FEWEST and loss > self.stopping_factor * min(self.losses):
            raise TrainingError("the loss is too high")
        self.rates.append(max(group["lr"] for group in trainer.optimizer.param_groups))
        self.losses.append(loss)
        if len(self.losses) == self.num_batches:
            raise TrainingError("all steps are made")


def find_learning_rate(
    params: Params,
    serialization_dir: str | Path,
    start_lr: float = 1e-5,
    end_lr: float = 10.0,
    num_batches: int = 100,
    linear_steps: bool = False,
    stopping_factor: float | None = None,
    force: bool = False,
    file_friendly_logging: bool = False,
) -> dict[str, Any]:
    """
    Trains with a learning rate that rises from step to step, in place of the config's schedule and without callbacks;
    of a training in stages, the first one. Parameter groups keep the ratios of their rates. Writes `lr-losses.json`
    and, if matplotlib is installed, `lr-losses.png`; returns `learning_rates`, `losses`, `smoothed_losses`, and the
    rates at which the smoothed loss falls fastest, `steepest`, and is lowest, `lowest`.
    """
    check_number("--num-batches", num_batches, low=FEWEST, open_low=True)
    if not 0 < start_lr < end_lr:
        raise ConfigurationError(f"--start-lr, --end-lr: found {start_lr}, {end_lr}, allowed: 0 < start < end")

    def rate(step: int) -> float:
        part = (step - 1) / (num_batches - 1)
        return start_lr + (end_lr - start_lr) * part if linear_steps else start_lr * (end_lr / start_lr) ** part

    config = params.as_dict(quiet=True)
    for block in (config.get("trainer", {}), *config.get("trainer", {}).get("stages", [])):
        for key in ("learning_rate_scheduler", "callbacks"):
            block.pop(key, None)
    directory = Path(serialization_dir)
    recorder = LossRecorder(directory, num_batches, stopping_factor)
    with ExitStack() as held:
        run = held.enter_context(built_run(Params(config), directory, False, force, False, file_friendly_logging))
        trainer: Any = run.trainer
        if isinstance(trainer, StagedTrainer):
            held.enter_context(trainer.stages[0].objective_in(trainer.model))
            trainer = trainer.build(trainer.stages[0])
        highest = max(group["lr"] or 0.0 for group in trainer.optimizer.param_groups) or 1.0
        trainer.learning_rate_scheduler = CurveScheduler(
            trainer.optimizer, lambda base, step: rate(max(step, 1)) * base / highest
        )
        trainer.callbacks = [recorder]
        try:
            for epoch in itertools.count():
                train_epoch(trainer, epoch)
                trainer.complete_epoch()
        except TrainingError:
            if len(recorder.losses) <= FEWEST:
                raise ConfigurationError(
                    f"--start-lr: found {start_lr}, where the loss diverges after {len(recorder.losses)} steps, "
                    "allowed: a lower one"
                ) from None
    found = summary(recorder.rates, recorder.losses)
    if not run.is_primary:
        return found
    write_json(directory / f"{NAME}.json", found)
    if plots_available():
        save_figure(figure(found, linear_steps), directory / f"{NAME}.png")
    return found


def summary(rates: list[float], losses: list[float]) -> dict[str, Any]:
    smoothed, average = [], 0.0
    for number, loss in enumerate(losses, 1):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        smoothed.append(average / (1 - SMOOTHING**number))
    lowest = int(np.argmin(smoothed))
    # Over a tenth of the steps, and not among the first ones, which are means of few losses.
    reach, first = max(1, len(rates) // 20), FEWEST if len(rates) > 3 * FEWEST else 1
    falls = {
        step: smoothed[step + reach] - smoothed[step - reach]
        for step in range(max(first, reach), min(lowest + 1, len(rates) - reach))
    }
    steepest = rates[min(falls, key=falls.__getitem__, default=lowest)]
    curves = {"learning_rates": rates, "losses": losses, "smoothed_losses": smoothed}
    return {**curves, "steepest": steepest, "lowest": rates[lowest]}


def figure(found: dict[str, Any], linear: bool) -> Any:
    """Losses and smoothed losses over the learning rate."""
    drawn, (axes,) = new_figure(8.2, 3.6)
    axes.plot(found["learning_rates"], found["losses"], color=LIGHT, label="loss of a step")
    axes.plot(found["learning_rates"], found["smoothed_losses"], color=BLUE, label="smoothed")
    axes.axvline(found["steepest"], color=BLUE, linestyle=":", label=f"steepest, {found['steepest']:.1e}")
    axes.set(xscale="linear" if linear else "log", xlabel="learning rate", ylabel="loss")
    shown = [loss for loss in found["losses"] if loss <= 3 * found["losses"][0]]
    axes.set_ylim(min(shown) - 0.1, max(shown) + 0.1)
    axes.legend()
    return drawn


def find_learning_rate_from_args(args: argparse.Namespace) -> None:
    """Runs the command; `args` as `commands/find_lr.py` parses them."""
    options = {name: getattr(args, name) for name in ("start_lr", "end_lr", "num_batches", "stopping_factor", "force")}
    options |= {"linear_steps": args.linear, "file_friendly_logging": args.file_friendly_logging}
    found = find_learning_rate(load_config(args.param_path, args.overrides), args.serialization_dir, **options)
    if launched_rank() > 0:
        return
    print(f"the smoothed loss falls fastest at {found['steepest']:.2e}, and is lowest at {found['lowest']:.2e}")
    drawn = f" and {NAME}.png" if plots_available() else '; for a plot: pip install "beem_plugin[plots]"'
    print(f"{args.serialization_dir}: {NAME}.json{drawn}")
