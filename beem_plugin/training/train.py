"""The command `allennlp train`."""

import argparse
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from accelerate import PartialState

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.logging import prepare_logging
from beem_plugin.common.params import load_config
from beem_plugin.common.ranks import launched_processes, launched_rank
from beem_plugin.common.registry import Params
from beem_plugin.models.model import Model
from beem_plugin.training.launch import join_processes
from beem_plugin.training.random_state import prepare_environment
from beem_plugin.training.serialization import check_serialization_dir, prepared_directory, write_config
from beem_plugin.training.train_model import Invocation, TrainModel

logger = logging.getLogger(__name__)


def train_model(
    params: Params,
    serialization_dir: str | Path,
    recover: bool = False,
    force: bool = False,
    dry_run: bool = False,
    file_friendly_logging: bool = False,
    return_model: bool = True,
) -> Model | None:
    """
    The command `allennlp train`. Returns the model with its best weights, or `None` with `return_model=False`.

    # Parameters

    params : `Params`
        The config, overrides applied. It is not consumed.
    serialization_dir : `str | Path`
        Must be empty or missing, except with `recover` or `force`.
    recover : `bool`, optional (default = `False`)
        Continues the run in the directory, whose config must be the same.
    force : `bool`, optional (default = `False`)
        Deletes the run in the directory, once the new one is constructed.
    dry_run : `bool`, optional (default = `False`)
        Builds everything, logs the sizes and validates one batch, which finds an unknown `validation_metric`, but does
        not train. Writes to a temporary directory only.
    file_friendly_logging : `bool`, optional (default = `False`)
        See `is_file_friendly`.
    return_model : `bool`, optional (default = `True`)
    """
    if not dry_run:
        with built_run(params, Path(serialization_dir), recover, force, False, file_friendly_logging) as run:
            run.run()
    else:
        with tempfile.TemporaryDirectory() as folder:
            with built_run(params, Path(folder) / "run", False, False, True, file_friendly_logging) as run:
                logger.info("Dry run: all components are built, nothing is trained.")
            prepare_logging(None, file_friendly_logging, launched_rank(), launched_processes())  # closes the log file
    return run.model if return_model else None


@contextmanager
def built_run(
    params: Params,
    directory: Path,
    recover: bool = False,
    force: bool = False,
    dry_run: bool = False,
    file_friendly_logging: bool = False,
) -> Iterator[TrainModel]:
    """All components of a training, checked; its directory is locked for the block."""
    config = params.as_dict(quiet=True)
    if config.get("distributed") is not None:
        raise ConfigurationError(
            "distributed: found a block, allowed: null; several processes are started by their launcher, as in "
            "`torchrun --nproc_per_node 2 -m beem_plugin train ...` or `accelerate launch -m beem_plugin train ...`"
        )
    rank = launched_rank()
    trainer = config.get("trainer")
    processes = join_processes(trainer.get("cuda_device") if isinstance(trainer, dict) else None)
    if rank == 0:
        check_serialization_dir(directory, config, recover, force)
    params = params.duplicate()
    params.pop("distributed", None)
    seed = params.get("random_seed", 13370)
    prepare_environment(params)
    invocation = Invocation(config, recover, rank == 0, seed if seed is not None else 13370, dry_run)
    with ExitStack() as held:
        # The first process creates the directory, the others wait for it.
        with prepared_directory(directory, recover, force, held) if rank == 0 else nullcontext():
            if rank == 0:
                write_config(directory, config)
            processes.wait_for_everyone()
            prepare_logging(directory, file_friendly_logging, rank, launched_processes())
            run = TrainModel.from_params(params, serialization_dir=directory, invocation=invocation)
            run.trainer.check()
        processes.wait_for_everyone()
        yield run


def train_model_from_args(args: argparse.Namespace) -> None:
    """`train_model` with the arguments of the command line."""
    names = ("serialization_dir", "recover", "force", "dry_run", "file_friendly_logging")
    options = {name: getattr(args, name) for name in names}
    train_model(load_config(args.param_path, args.overrides), **options, return_model=False)
    if launched_processes() > 1:
        PartialState().destroy_process_group()
