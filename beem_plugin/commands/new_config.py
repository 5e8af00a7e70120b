from beem_plugin.commands.subcommand import Argument, Subcommand, flag


@Subcommand.register("new-config")
class NewConfig(Subcommand):
    """Look at the columns, labels and lengths of a table of labelled texts, and write a config for it."""

    help = "write a config for data of one's own"
    requires_plugins = False
    arguments = (
        Argument("--data", required=True, metavar="FILE", help="CSV, TSV or JSON lines, gzipped or not"),
        Argument("--output", default="my_data.jsonnet", metavar="FILE", help="the config"),
        Argument("--text", action="append", metavar="COLUMN", help="the text; twice for pairs"),
        Argument("--label", metavar="COLUMN", help="the column of the classes, or of scores"),
        Argument(
            "--encoder", default="microsoft/mpnet-base", metavar="NAME", help="a hub name, a folder, or package:minilm"
        ),
        flag("-f", "--force", help="replace the config if it exists"),
    )
    runs = "beem_plugin.training.new_config:new_config_from_args"
