"""Adafactor, transformers' own."""

from __future__ import annotations

from transformers.optimization import Adafactor

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.training.optimizers import NamedParameters, Optimizer
from beem_plugin.training.parameter_groups import ParameterGroups


@Optimizer.register("huggingface_adafactor")
class HuggingfaceAdafactorOptimizer(Optimizer, Adafactor):  # type: ignore[misc]  # two kinds of Optimizer.step
    """
    transformers' Adafactor, whose state is much smaller than Adam's. By default it chooses its own learning rate, and
    there is nothing left for a `learning_rate_scheduler`; for a rate of your own set `lr` and `relative_step: false`.

    Registered as an `Optimizer` with name "huggingface_adafactor".

    # Parameters

    lr : `float`, optional (default = `None`)
        Needs `relative_step: false`.
    eps : `tuple[float, float]`, optional (default = `(1e-30, 0.001)`)
        Added to the squared gradient, and the smallest scale of a parameter.
    clip_threshold : `float`, optional (default = `1.0`)
        The largest root mean square of an update.
    decay_rate : `float`, optional (default = `-0.8`)
    beta1 : `float`, optional (default = `None`)
        Momentum, if any.
    weight_decay : `float`, optional (default = `0.0`)
    scale_parameter : `bool`, optional (default = `True`)
        Whether the learning rate is relative to a parameter's own size.
    relative_step : `bool`, optional (default = `True`)
        Whether the learning rate follows from the number of steps.
    warmup_init : `bool`, optional (default = `False`)
        Whether such a rate rises from 0; needs `relative_step`.
    """

    def __init__(
        self,
        model_parameters: NamedParameters,
        parameter_groups: ParameterGroups | None = None,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        groups = self.groups(model_parameters, parameter_groups)
        given = {"lr": lr, "relative_step": relative_step, "warmup_init": warmup_init}
        for options in (given, *({**given, **group} for group in groups)):
            _check_rate(options["lr"], options["relative_step"], options["warmup_init"])
        Adafactor.__init__(
            self,
            groups,
            lr=lr,
            eps=eps,
            clip_threshold=clip_threshold,
            decay_rate=decay_rate,
            beta1=beta1,
            weight_decay=weight_decay,
            scale_parameter=scale_parameter,
            relative_step=relative_step,
            warmup_init=warmup_init,
        )


def _check_rate(lr: float | None, relative_step: bool, warmup_init: bool) -> None:
    if relative_step and lr is not None:
        raise ConfigurationError(f"lr: found {lr!r}, allowed: null, or a number with relative_step false")
    if not relative_step and lr is None:
        raise ConfigurationError("lr: found null, allowed: a number, or null with relative_step true")
    if not relative_step and warmup_init:
        raise ConfigurationError("warmup_init: found true, allowed: false, or true with relative_step true")
