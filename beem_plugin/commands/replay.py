from beem_plugin.commands.subcommand import Argument, Subcommand, count, flag, overrides


@Subcommand.register("replay")
class Replay(Subcommand):
    """Judge and compare exit policies on stored traces, without running the network."""

    help = "judge exit policies on traces"
    reads = ("trace", "calibrate_on")
    arguments = (
        Argument("trace", nargs="*", metavar="TRACE.npz", help="what `trace` or a training run stored"),
        Argument(
            "--policy",
            action="append",
            metavar="POLICY",
            help="a policy's name, its block {..}, or a json or jsonnet file with it; repeatable. Keys may have "
            "several values: 'patience: [2, 3, 4]' where it takes one, or anywhere {grid: [..]}, {linspace: [from, to, "
            "count]}; thresholds also {quantiles: count}",
        ),
        Argument(
            "--policies",
            action="append",
            metavar="VARIANTS",
            help="a json or jsonnet file with many: {name: block, ..} or [block, ..]; repeatable",
        ),
        Argument(
            "--calibrate-on",
            nargs="+",
            metavar="OTHER.npz",
            help="the trace on which weights and thresholds are calibrated: one for all, or one for each trace in the "
            "same order",
        ),
        Argument(
            "--plain",
            nargs="+",
            metavar="ARCHIVE|PLAIN.npz",
            help="networks of fewer layers without exits, on the same samples: archives, which are run, or traces; of "
            "each network one for each trace. The deepest, if no exits are deeper, is what speeds and paired tests "
            "are relative to",
        ),
        Argument(
            "--metric",
            help="what curves and the order of the table are about: accuracy (the default), f1, accuracy_f1, macro_f1, "
            "matthews; pearson_spearman of a regression",
        ),
        flag(
            "--curve",
            help="sweep the threshold, patience, ... of every policy with a score over all values that make a "
            "difference; without, curves go through the settings that were given",
        ),
        count(
            "--edge-layers",
            help="split the network after layer N: report the share of samples that go on to a second machine, and "
            "the mean cost on the first one, in layers",
        ),
        Argument("--offload-cost", type=float, default=1.0, metavar="L", help="of sending a sample on, in layers"),
        Argument("--output-file", metavar="R.json", help="where the metrics go, as JSON"),
        Argument("--csv", metavar="R.csv", help="where they go as a table, one row a setting"),
        Argument("--plot", metavar="P.png|P.svg", help="where the curves go; needs matplotlib"),
        Argument(
            "--predictions-output-file",
            metavar="P.jsonl",
            help="where exit and label (or value) of each sample go, as JSON lines; needs one trace, no grid",
        ),
        Argument(
            "--table", metavar="T.md|T.tex|T.csv|T.json", help="where the table of results goes, in the name's format"
        ),
        overrides("every policy", '{"thresholds": 0.9}'),
    )
    runs = "beem_plugin.comparison.replay:replay_from_args"
