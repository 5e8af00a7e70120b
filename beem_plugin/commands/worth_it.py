from beem_plugin.commands.subcommand import Argument, Subcommand, count, flag, overrides


@Subcommand.register("worth-it")
class WorthIt(Subcommand):
    """
    Is early exit worth it on these data? Trains the config, plain networks (the first layers of its encoder, each
    trained for itself), and compares the accuracy of exits, plain networks and cascades at equal cost. Finished work is
    kept: the same command continues an interrupted one, and takes further depths or seeds.
    """

    help = "compare exits with plain networks"
    reads = ("config",)
    after_interrupt = "the same command goes on"
    arguments = (
        Argument("config", metavar="CONFIG", help="with exits: jsonnet, json or yaml"),
        Argument(
            "-s", "--serialization-dir", required=True, metavar="DIR", help="where trainings, traces and results go"
        ),
        count("--seeds", default=3, help="trainings of each network"),
        Argument(
            "--depths",
            type=int,
            nargs="+",
            metavar="LAYERS",
            help="of the plain networks (default: as fast as the speeds); full depth is always trained",
        ),
        flag("--distill", help="also train plain networks that the one of full depth teaches"),
        Argument(
            "--cascades",
            nargs="*",
            metavar="LAYERS,LAYERS",
            help="depths of cascades: the small network first, the next one where it is not confident (default: all "
            "pairs); without values, none",
        ),
        Argument(
            "--policies",
            action="append",
            metavar="FILE",
            help="exit policies besides the config's, max_probability and expected_gain: {name: block, ..} or "
            "[block, ..]; repeatable",
        ),
        Argument(
            "--speeds", type=float, nargs="+", metavar="X", help="layer speed-ups to decide at (default: 1.5 2 2.5 3)"
        ),
        Argument(
            "--by",
            choices=["layers", "single", "file"],
            default="layers",
            help="what equal cost means: layers, or measured seconds one by one or of a file",
        ),
        Argument("--no-measure", dest="measure", action="store_false", help="count layers only, measure no seconds"),
        count("--jobs", default=1, help="trainings at a time"),
        count("--cuda-device", help="number of the GPU, -1 for the CPU, in place of the config's"),
        flag("--dry-run", help="print the trainings and what they cost"),
        flag("-f", "--force", help="delete what is in DIR first"),
        overrides("CONFIG"),
        "--file-friendly-logging",
    )
    runs = "beem_plugin.comparison.worth_it.run:worth_it_from_args"
