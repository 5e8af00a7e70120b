from beem_plugin.commands.subcommand import Argument, Subcommand, count, flag, overrides


@Subcommand.register("ablate")
class Ablate(Subcommand):
    """
    Compare a config with variants of it, on one table. Variants that differ only in the exit policy, its calibration or
    the engine share one training. Finished work is kept: the same command continues an interrupted ablation, and takes
    further variants and seeds.
    """

    help = "compare a config with variants of it"
    reads = ("base", "variants")
    after_interrupt = "the same command goes on"
    arguments = (
        Argument("base", metavar="BASE", help="the config: jsonnet, json or yaml"),
        Argument(
            "variants",
            metavar="VARIANTS",
            help="a file with an object, name -> what differs from BASE: blocks are merged, dotted keys change one "
            'value; {"grid": {KEY: [VALUES]}, "select": "best" or "all"} tries all combinations; '
            '"plain": [4, 6, 8] trains networks of so many layers without exits',
        ),
        Argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and tables go"
        ),
        count("--seeds", default=1, help="trainings of each variant, counted from its own seeds"),
        count("--jobs", default=1, help="trainings at a time"),
        flag("-r", "--recover", help="DIR must hold an ablation; to continue it is the default"),
        flag("-f", "--force", help="delete the ablation in DIR first"),
        flag("--measure", help="also time each variant on its engine, on the data it is judged on"),
        overrides("BASE"),
        "--file-friendly-logging",
    )
    runs = "beem_plugin.comparison.ablation.ablate:ablate_from_args"
