import argparse
import json

from beem_plugin.commands.subcommand import Argument, Subcommand, overrides
from beem_plugin.common.errors import ConfigurationError


@Subcommand.register("diff-config")
class DiffConfig(Subcommand):
    """
    Print what differs between two configs once they are evaluated, `key: a -> b`, a line a key. Exit status: 0 if they
    are equal, 1 if they differ, 2 after an error.
    """

    help = "print what differs between two configs"
    requires_plugins = False
    error_status = 2
    arguments = (
        Argument("config_a", metavar="A", help="a config"),
        Argument("config_b", metavar="B", nargs="?", help="another; if not given, A with the overrides"),
        overrides("B, or to A if there is no B"),
    )

    def run(self, args: argparse.Namespace) -> int:
        from beem_plugin.common.params import ABSENT, diff_configs, load_config_dict

        if args.config_b is None and not args.overrides.strip():
            raise ConfigurationError("diff-config needs a second config, or overrides (-o), to compare with")
        a = load_config_dict(args.config_a)
        b = load_config_dict(args.config_b or args.config_a, args.overrides)
        differences = diff_configs(a, b)
        for key, *values in differences:
            print(f"{key}: {' -> '.join(repr(one) if one is ABSENT else json.dumps(one) for one in values)}")
        return 1 if differences else 0
