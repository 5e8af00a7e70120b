"""Alias of `kernels.launch`."""

from beem_plugin.kernels.launch import launch, power_of_two

__all__ = ["launch", "power_of_two"]
