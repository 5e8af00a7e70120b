import argparse
import shutil
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from beem_plugin.commands.subcommand import Argument, Subcommand, flag
from beem_plugin.common.errors import ConfigurationError, DataError, first_line

CONNECT_SECONDS = 10


@Subcommand.register("cached-path")
class CachedPath(Subcommand):
    """Download files once and print their local paths; list or remove what has been downloaded."""

    help = "download files to a cache"
    requires_plugins = False
    arguments = (
        Argument("resources", nargs="*", help="URLs, hf://OWNER/NAME/FILE or paths; or glob patterns"),
        Argument("-d", "--cache-dir", metavar="DIR", help="another folder than ~/.cache/cached_path"),
        flag("-x", "--extract-archive", help="unpack zip and tar.gz files"),
        flag("-f", "--force-extract", help="unpack them again"),
        [
            flag("--inspect", help="list the cached files that match the patterns"),
            flag("--remove", help="remove the cached files that match the patterns"),
        ],
    )

    def run(self, args: argparse.Namespace) -> None:
        if not args.resources and not args.inspect:
            raise ConfigurationError("cached-path: found no resources, allowed: one or more; with --remove, '*' is all")
        if args.inspect or args.remove:
            _list_or_remove(args)
            return
        import requests
        from cached_path import cached_path, find_latest_cached

        for resource in args.resources:
            try:
                address, *_ = resource.split("!")  # what follows is a file in an archive
                if address.startswith(("http://", "https://")) and find_latest_cached(address, args.cache_dir) is None:
                    requests.head(address, timeout=CONNECT_SECONDS)  # cached_path alone tries for half a minute
                print(cached_path(resource, args.cache_dir, args.extract_archive, args.force_extract))
            except Exception as error:  # of the net, the server or the archive
                raise DataError(f"{resource}: {first_line(error)}") from None


def _list_or_remove(args: argparse.Namespace) -> None:
    """Lists or removes the cached files whose addresses match the patterns."""
    from cached_path import get_cache_dir
    from cached_path.meta import Meta

    found = []
    for described in sorted(Path(args.cache_dir or get_cache_dir()).glob("*.json")):
        with suppress(KeyError, TypeError, ValueError, OSError):  # a file that is no part of the cache
            entry = Meta.from_path(described)
            if any(fnmatch(entry.resource, pattern) for pattern in args.resources or ["*"]):
                found.append((described, described.with_suffix(""), entry))
    for described, path, entry in found:
        if args.inspect:
            print(f"{entry.resource}\t{entry.size} bytes\t{path}")
            continue
        if path.is_dir():
            shutil.rmtree(path)
        for left in (path, Path(f"{path}.lock"), described):
            left.unlink(missing_ok=True)
    size = sum(entry.size for *_, entry in found)
    print(f"Reclaimed {size} bytes of space" if args.remove else f"{len(found)} entries, {size} bytes")
