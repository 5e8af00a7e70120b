import argparse

from beem_plugin.commands.subcommand import Argument, Subcommand, flag
from beem_plugin.common.errors import ConfigurationError


@Subcommand.register("push-to-hf")
class PushToHf(Subcommand):
    """
    Upload a trained model to Hugging Face's hub with a model card; `beem_plugin.load` and all commands read it by its
    name there. `hf auth login` stores the token.
    """

    help = "upload a trained model to the hub"
    reads = ("archive_file", "archive_path", "serialization_dir")
    arguments = (
        Argument("archive_file", metavar="ARCHIVE", nargs="?", help="model.tar.gz, or a run's directory"),
        Argument("-a", "--archive-path", metavar="ARCHIVE", help="another way to give ARCHIVE"),
        Argument("-s", "--serialization-dir", metavar="DIR", help="another way to give ARCHIVE"),
        Argument("--repo-id", metavar="OWNER/NAME", help="the repository, made if there is none"),
        Argument("-n", "--repo-name", metavar="NAME", help="in place of --repo-id"),
        Argument("-o", "--organization", metavar="OWNER", help="of --repo-name, if not you"),
        Argument("-c", "--commit-message", default="Update repository", metavar="TEXT", help="of the commit"),
        Argument("-l", "--local-repo-path", metavar="DIR", help="keep the uploaded files there"),
        flag("--private", help="make a new repository private"),
    )

    def check(self, args: argparse.Namespace) -> None:
        archives = [path for path in (args.archive_file, args.archive_path, args.serialization_dir) if path]
        if len(archives) != 1:
            raise ConfigurationError(f"push-to-hf: found {len(archives)} archives, allowed: one of ARCHIVE, -a, -s")
        if (args.repo_id is None) == (args.repo_name is None):
            raise ConfigurationError("push-to-hf: allowed: one of --repo-id OWNER/NAME and --repo-name NAME")
        super().check(args)

    def run(self, args: argparse.Namespace) -> None:
        from beem_plugin.publish import push_to_hub

        name = args.repo_id or "/".join(part for part in (args.organization, args.repo_name) if part)
        address = push_to_hub(
            args.archive_file or args.archive_path or args.serialization_dir,
            name,
            args.private or None,
            folder=args.local_repo_path,
            commit_message=args.commit_message,
        )
        print(address)
