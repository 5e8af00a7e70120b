"""Importing this module imports every component, so that its name can be used in a config."""

from beem_plugin.common.plugins import import_submodules

COMPONENT_PACKAGES = (
    "data",
    "dataset_readers",
    "backbones",
    "exits",
    "calibration",
    "objectives",
    "models",
    "execution",
    "decoding",
    "tasks",
    "training",
    "predictors",
)

for _package in COMPONENT_PACKAGES:
    import_submodules(f"beem_plugin.{_package}")
