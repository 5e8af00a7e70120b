"""`allennlp trace`: the outputs of every exit of an archive on a data set, as a file."""

import argparse
import sys

from beem_plugin.archival import Archive, archive_of
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.progress import counted
from beem_plugin.common.ranks import is_main, joined, share
from beem_plugin.tasks.task import evaluation_loader, read_instances, task_of_archive


def trace_from_args(args: argparse.Namespace) -> ExitTrace:
    """Runs the command; `args` as `commands/trace.py` parses them."""
    with joined():
        archive = archive_of(args)
        trace = trace_archive(archive, args.input_file, args.batch_size)
        if is_main():
            trace.save(args.output_file)
            counts = f"{len(trace)} samples, {trace.num_exits} exits, {trace.num_labels} labels"
            print(f"{args.output_file}: {counts}", file=sys.stderr)
    return trace


def trace_archive(archive: Archive, source: str, batch_size: int | None = None) -> ExitTrace:
    """Runs all exits of an archive's model over what its validation reader reads from `source`."""
    instances = read_instances(archive, source)
    ids = [str(instance.id) for instance in instances] if instances[0].id is not None else None
    loader = evaluation_loader(archive, instances, batch_size)
    batches = counted(share(loader), len(loader), "tracing", " batches")
    return task_of_archive(archive).trace(archive.model, batches, ids, source)
