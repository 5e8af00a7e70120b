from beem_plugin.commands.subcommand import Argument, Subcommand, count, flag, overrides


@Subcommand.register("find-lr")
class FindLearningRate(Subcommand):
    """Find the learning rates at which the loss falls: train a little while the rate rises."""

    help = "find a learning rate"
    reads = ("param_path",)
    arguments = (
        "param_path",
        Argument("-s", "--serialization-dir", required=True, metavar="DIR", help="where losses and plot go"),
        overrides(),
        Argument("--start-lr", type=float, default=1e-5, metavar="RATE", help="the first learning rate"),
        Argument("--end-lr", type=float, default=10.0, metavar="RATE", help="the last one"),
        count("--num-batches", default=100, help="optimizer steps"),
        Argument("--stopping-factor", type=float, metavar="X", help="stop when a loss is X times the lowest one"),
        flag("--linear", help="raise the rate by differences, not by ratios"),
        flag("-f", "--force", help="delete DIR first if it exists"),
        "--file-friendly-logging",
    )
    runs = "beem_plugin.training.find_learning_rate:find_learning_rate_from_args"
