from beem_plugin.commands.subcommand import Argument, Subcommand, flag, overrides


@Subcommand.register("build-vocab")
class BuildVocab(Subcommand):
    """Write the labels of the data that a config reads, for `vocabulary` in configs of other data."""

    help = "write the vocabulary of a config"
    reads = ("param_path",)
    arguments = (
        "param_path",
        Argument("output_path", help="the file to write, a .tar.gz"),
        flag("-f", "--force", help="replace the file if it exists"),
        overrides(),
    )
    runs = "beem_plugin.training.build_vocab:build_vocab_from_args"
