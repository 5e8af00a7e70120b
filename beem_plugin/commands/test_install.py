import argparse
import inspect

from beem_plugin import __version__
from beem_plugin.commands.subcommand import Subcommand
from beem_plugin.common.errors import BeemError

_EXPECTED = ("DatasetReader", "DataLoader", "Backbone", "ExitPolicy", "Model", "Trainer", "Predictor")


@Subcommand.register("test-install")
class TestInstall(Subcommand):
    """Show versions and devices, and check that every kind of component is registered."""

    help = "check the installation"
    __test__ = False  # the name is AllenNLP's, and no test

    def run(self, args: argparse.Namespace) -> None:
        import torch
        import transformers

        from beem_plugin.common.registry import Registrable

        print(f"beem_plugin {__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
        print(f"CUDA devices: {torch.cuda.device_count()}")
        for device in range(torch.cuda.device_count()):
            print(f"  {device}: {torch.cuda.get_device_name(device)}")
        components = {
            base.__name__: sorted(entries)
            for base, entries in Registrable._registry.items()
            if inspect.isclass(base) and issubclass(base, Registrable) and entries
        }
        for base, names in sorted(components.items()):
            print(f"{base}: {', '.join(names)}")
        missing = [base for base in _EXPECTED if not components.get(base)]
        if missing:
            raise BeemError(f"the installation is incomplete: nothing is registered as {', '.join(missing)}")
