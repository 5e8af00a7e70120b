"""The methods of the tables: a preset each, and the operating point that its paper or release gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.common.encoder_reads import reads
from beem_plugin.common.params import apply_overrides, check_numbers, parse_overrides
from beem_plugin.comparison.trainings.variants import Variant


@dataclass(frozen=True)
class Method:
    """
    # Parameters

    row : `str`
        The head of its row; `{encoder}` and `{layers}` are filled in.
    preset : `str`, optional (default = `""`)
        A member of `beem/methods.libsonnet`; none for the task's own config, BEEM's training. `{layers}` is filled in.
    policy : `str`, optional (default = `""`)
        A member of `beem/policies.libsonnet`, in place of the preset's.
    point : `dict[str, Any]`, optional (default = `{}`)
        Entries of the exit policy: the published threshold, where the preset fits one.
    """

    row: str
    preset: str = ""
    policy: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)


METHODS = {
    "final": Method("{encoder}", "final"),
    "reduced": Method("{encoder}-{layers}L", "reduced({layers})"),
    "deebert": Method("DeeBERT", "deebert"),
    "elasticbert": Method("ElasticBERT", "elasticbert", point={"thresholds": 0.1}),
    "fastbert": Method("FastBERT", "fastbert", point={"thresholds": 0.5}),
    "pabee": Method("PABEE", "pabee"),
    "ztw": Method("ZTW", "ztw"),
    "pcee": Method("PCEE-BERT", "pcee"),
    "leebert": Method("LeeBERT-style", "leebert"),
    "palbert": Method("PALBERT", "palbert"),
    "jei_dnn": Method("JEI-DNN", "jei_dnn"),
    "beem-c": Method("BEEM-C", policy="beem-c"),
    "beem-a": Method("BEEM-A", policy="beem-a"),
    "berxit": Method("BERxiT", "berxit"),
    "eeic": Method("EEIC", "eeic"),
    "shallow_deep": Method("Shallow-Deep", "shallow_deep"),
    "branchynet": Method("BranchyNet", "branchynet"),
    "past_future": Method("Global Past-Future", "past_future"),
    "mue": Method("MuE (text)", "mue"),
    "hashee": Method("HashEE", "hashee"),
    "beem-a w/o fix": Method(
        "BEEM-A, one threshold", policy="beem-a", point={"thresholds": {"type": "best_on_validation"}}
    ),
    # Variants of ours, see `UNLISTED`.
    "ztw_lbfgs": Method("ZTW, L-BFGS", "ztw_lbfgs"),
    "jei_dnn_small": Method("JEI-DNN, small tasks", "jei_dnn_small()"),
    "recommended": Method("recommended", "recommended()"),
    **{f"plain_{layers}": Method(f"{{encoder}}-{layers}L", f"reduced({layers})") for layers in (3, 4, 6, 8, 9)},
}
UNLISTED = ("ztw_lbfgs", "jei_dnn_small", "recommended", "beem-a w/o fix", *(key for key in METHODS if "plain_" in key))
"""Methods of no table unless they are named."""
FULL_PRECISION = {"leebert"}
"""Its loss weights come from small differences of losses."""


@dataclass(frozen=True)
class Choices:
    """
    What the user chose for all runs. `None` keeps what the method publishes.

    # Parameters

    epochs, lr, batch_size : optional (default = `None`)
        Arguments of `glue.task`.
    speedup : `float`, optional (default = `None`)
        A layer speed-up that every open or published threshold is replaced for, on held-out data.
    overrides, task_overrides : `dict[str, Any]`, optional (default = `{}`)
        Of all configs; of those of a task, by its name.
    """

    epochs: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    speedup: float | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    task_overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def variant_of(key: str, task: str, backbone: str, layers: int, choices: Choices = Choices()) -> Variant:
    """A method's config on a GLUE task; `layers` are those of the network that is cut down."""
    method = METHODS[key]
    arguments = {"epochs": choices.epochs, "lr": choices.lr, "batch_size": choices.batch_size}
    listed = "".join(f", {name}={value}" for name, value in arguments.items() if value is not None)
    text = f"(import 'beem/glue.libsonnet').task({json.dumps(task)}, model={json.dumps(backbone)}{listed})"
    if method.preset:
        text += f" + (import 'beem/methods.libsonnet').{method.preset.format(layers=layers)}"
    if method.policy:
        text += f" + {{ model+: {{ exit_policy: (import 'beem/policies.libsonnet')[{json.dumps(method.policy)}] }} }}"
    config = parse_overrides(text, {"BEEM_BACKBONE": ""})  # the backbone is given
    policy = config["model"]["exit_policy"]
    policy.update(method.point)
    if choices.speedup is not None and "thresholds" in policy:
        policy["thresholds"] = {"type": "budget", "speedup": choices.speedup}
    own = {**choices.overrides, **choices.task_overrides.get(task, {})}
    if key in FULL_PRECISION:
        own.pop("trainer.mixed_precision", None)
    config = apply_overrides(config, own)
    check_numbers(config, f"{key} on {task}: ")
    return Variant(key, config, key)


def shown_encoder(backbone: str) -> str:
    """An encoder's short name: `ALBERT-large`, or the name of its folder."""
    name = Path(backbone).name
    if reads(backbone) != "cls" or Path(backbone).is_dir():
        return name
    family, *rest = name.split("-")
    return family.upper() + ("-large" if "large" in rest else "")


def settings_of(variant: Variant) -> dict[str, Any]:
    """What was run, for the table of settings: rates, batch, epochs by stage, and the rule."""
    trainer = variant.config["trainer"]
    stages = trainer.get("stages") or [{}]

    def of_stages(find: Any) -> str:
        return ", ".join(dict.fromkeys(str(find(stage)) for stage in stages))

    def optimizer(stage: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = stage.get("optimizer", trainer["optimizer"])
        return found

    return {
        "rate": of_stages(lambda stage: f"{optimizer(stage)['lr']:g}"),
        "optimizer": of_stages(lambda stage: optimizer(stage)["type"]),
        "batch": variant.config["data_loader"]["batch_size"],
        "epochs": of_stages(lambda stage: stage.get("num_epochs", trainer["num_epochs"])),
        "rule": json.dumps(variant.policy),
    }
