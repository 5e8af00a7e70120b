import argparse

from beem_plugin.commands.subcommand import Argument, Subcommand


@Subcommand.register("diff")
class Diff(Subcommand):
    """
    Compare the weights of two models, a line a tensor: `+` only the second has it, `-` only the first, `!` they differ,
    ` ` they do not. The distance is the root of the mean squared difference, times --scale.
    """

    help = "compare the weights of two models"
    requires_plugins = False
    arguments = (
        *(Argument(f"checkpoint{n}", help="a model.tar.gz, a run's directory, .safetensors or .th") for n in (1, 2)),
        *(
            Argument(f"--strip-prefix-{n}", metavar="TEXT", default="", help=f"to remove from names in checkpoint{n}")
            for n in (1, 2)
        ),
        Argument("--scale", type=float, default=1.0, metavar="X", help="a factor of distances"),
        Argument(
            "--threshold", type=float, default=1e-5, metavar="X", help="tensors at this distance or less are the same"
        ),
    )

    def run(self, args: argparse.Namespace) -> None:
        import torch

        from beem_plugin.common.archive_files import state_of

        first, second = (
            {name.removeprefix(prefix): value for name, value in state_of(path).items()}
            for path, prefix in ((args.checkpoint1, args.strip_prefix_1), (args.checkpoint2, args.strip_prefix_2))
        )
        for name in sorted({**first, **second}, key=_natural):
            a, b = first.get(name), second.get(name)
            if a is not None and b is not None and a.shape == b.shape:
                distance = args.scale * float(torch.nn.functional.mse_loss(a.double(), b.double()).sqrt())
                differs = not distance <= args.threshold  # also if it is not a number
                ending = f", distance = {distance:.4g}" if differs else ""
                print(f"{'!' if differs else ' '}{name}, shape = {tuple(a.shape)}{ending}")
                continue
            for sign, value in (("-", a), ("+", b)):
                if value is not None:
                    print(f"{sign}{name}, shape = {tuple(value.shape)}")


def _natural(name: str) -> list[tuple[int, str]]:
    """Layer 10 behind layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
