"""The methods of the tables, a preset each with its published operating point; and each table's rows and columns."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beem_plugin.common.encoder_reads import reads
from beem_plugin.common.params import apply_overrides, check_numbers, parse_overrides
from beem_plugin.comparison.trainings.variants import Variant


@dataclass(frozen=True)
class Method:
    """A member of `beem/methods.libsonnet`, or the task's own config, which is BEEM's training."""

    row: str  # the head of its row; `{encoder}` and `{layers}` are filled in, as in `preset`
    preset: str = ""
    policy: str = ""  # a member of `beem/policies.libsonnet`, in place of the preset's
    point: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the exit policy: the published threshold, where the preset fits one."""


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
    "etfee": Method("ETFEE", "etfee"),
    "beem-a w/o fix": Method(
        "BEEM-A, one threshold", policy="beem-a", point={"thresholds": {"type": "best_on_validation"}}
    ),
    # Other rules on the same trainings.
    "beem expected_gain": Method("BEEM's training, expected_gain", policy="expected-gain"),
    "beem confidence": Method("BEEM's training, confidence", policy="confidence-calibrated"),
    "pabee beem-a": Method("PABEE's training, BEEM-A", "pabee", policy="beem-a"),
    "pabee confidence": Method("PABEE's training, confidence", "pabee", policy="confidence-calibrated"),
    "elasticbert patience": Method("ElasticBERT-patience", "elasticbert", policy="beem-release-bert"),
    # Variants of ours, see `UNLISTED`.
    "ztw_lbfgs": Method("ZTW, L-BFGS", "ztw_lbfgs"),
    "jei_dnn_small": Method("JEI-DNN, small tasks", "jei_dnn_small()"),
    "recommended": Method("recommended", "recommended()"),
    **{f"plain_{layers}": Method(f"{{encoder}}-{layers}L", f"reduced({layers})") for layers in (3, 4, 6, 8, 9)},
}
UNLISTED = ("ztw_lbfgs", "jei_dnn_small", "recommended", "beem-a w/o fix", *(key for key in METHODS if "plain_" in key))
"""Methods of no table unless they are named."""
FULL_PRECISION = {"leebert"}  # its loss weights come from small differences of losses


_TABLE_2 = (
    *("final", "reduced", "deebert", "elasticbert", "fastbert", "pabee", "ztw", "leebert", "palbert", "jei_dnn"),
    *("beem-c", "beem-a"),
)


@dataclass(frozen=True)
class Layout:
    """Rows are the methods of each backbone, columns the tasks."""

    title: str
    backbones: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    relative: bool = True  # whether numbers are differences to the first row, the network without exits


LAYOUTS = {
    "1": Layout(
        "Table 1, development sets",
        ("albert-base-v2",),
        ("sst2", "mnli", "rte", "qnli", "qqp"),
        (*_TABLE_2[:7], "pcee", *_TABLE_2[7:]),
    ),
    "2": Layout("Table 2", ("bert-base-uncased",), ("rte", "cola"), _TABLE_2),
    "4": Layout("Table 4", ("albert-large-v2", "bert-large-uncased"), ("rte", "cola", "qqp"), ("final", "beem-a")),
    "5": Layout(
        "Table 5", ("albert-base-v2", "albert-large-v2"), ("sst2", "qqp"), ("beem-a w/o fix", "beem-a"), relative=False
    ),
    "methods": Layout(
        "every method under its own training",
        ("albert-base-v2",),
        ("rte", "mrpc", "cola", "sst2"),
        tuple(key for key in METHODS if key not in UNLISTED),
    ),
}
CAPTION_TABLE = "3"
CAPTION_METHODS = {
    "final": "Final-Exit",
    "reduced": "Decoder-{layers}L",
    "deebert": "DeeBERT",
    "elasticbert": "ElasticBERT",
    "pabee": "PABEE",
    "fastbert": "FastBERT",
    "leebert": "LeeBERT-style",
    "deecap": "DeeCap",
    "mue": "MuE",
    "beem-c": "BEEM-C",
    "beem-a": "BEEM-A",
}
FIGURES = {
    name: Layout(f"accuracy over {name}", ("albert-base-v2",), ("sst2", "qqp"), methods, relative=False)
    for name, methods in (("alpha", ("beem-a", "beem-c", "pabee", "deebert")), ("lambda", ("beem-c",)))
}
"""Methods are under their own training."""


@dataclass(frozen=True)
class Choices:
    """What the user chose for all runs. `None` keeps what the method publishes."""

    epochs: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    speedup: float | None = None
    """A layer speed-up that every open or published threshold is replaced for, on held-out data."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    task_overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def variants(self, members: Mapping[str, str], task: str, **more: Any) -> list[Variant]:
        """
        The configs that jsonnet gives for `members`, by method, with the overrides, and `more` of them where the user
        gave none. They are evaluated together: imports take longer than all else.
        """
        listed = ", ".join(f"{json.dumps(key)}: {member}" for key, member in members.items())
        found = parse_overrides(f"{{ {listed} }}", {"BEEM_BACKBONE": ""})  # the backbone is given
        variants = []
        for key in members:
            own = {**more, **self.overrides, **self.task_overrides.get(task, {})}
            if key in FULL_PRECISION:
                own.pop("trainer.mixed_precision", None)
            policy = found[key]["model"]["exit_policy"]
            if self.speedup is not None and "thresholds" in policy:
                policy["thresholds"] = {"type": "budget", "speedup": self.speedup}
            config = apply_overrides(found[key], own)
            check_numbers(config, f"{key} on {task}: ")
            variants.append(Variant(key, config, key))
        return variants


def variants_of(
    methods: Iterable[str], task: str, backbone: str, layers: int, choices: Choices = Choices()
) -> list[Variant]:
    """Each method's config on a GLUE task; `layers` are those of the network that is cut down."""
    arguments = {"epochs": choices.epochs, "lr": choices.lr, "batch_size": choices.batch_size}
    listed = "".join(f", {name}={value}" for name, value in arguments.items() if value is not None)
    base = f"(import 'beem/glue.libsonnet').task({json.dumps(task)}, model={json.dumps(backbone)}{listed})"
    members = {}
    for key in methods:
        method, members[key] = METHODS[key], base
        if method.preset:
            members[key] += f" + (import 'beem/methods.libsonnet').{method.preset.format(layers=layers)}"
        if method.policy or method.point:
            policies = f"(import 'beem/policies.libsonnet')[{json.dumps(method.policy)}]"
            policy = f"{policies if method.policy else 'super.exit_policy'} + {json.dumps(method.point)}"
            members[key] += f" + {{ model+: {{ exit_policy: {policy} }} }}"
    return choices.variants(members, task)


def shown_encoder(backbone: str) -> str:
    """An encoder's short name: `ALBERT-large`, or the name of its folder."""
    name = Path(backbone).name
    if reads(backbone) != "cls" or Path(backbone).is_dir():
        return name
    family, *rest = name.split("-")
    return family.upper() + ("-large" if "large" in rest else "")


def settings_of(variant: Variant) -> dict[str, str]:
    """What was run, for the table of settings: rates, batch, epochs by stage, the rule, and beams of captions."""
    trainer, decoding = variant.config["trainer"], variant.config["model"].get("decoding")
    stages = [{**trainer, **stage} for stage in trainer.get("stages") or [{}]]
    loader = variant.config["data_loader"]
    found = {
        "rate": [f"{stage['optimizer']['lr']:g}" for stage in stages],
        "optimizer": [stage["optimizer"]["type"] for stage in stages],
        "batch": [loader["batch_size"] if "batch_size" in loader else loader["batch_sampler"]["batch_size"]],
        "epochs": [stage["num_epochs"] for stage in stages],
        "rule": [json.dumps(variant.policy)],
    }
    found |= {"beams": [decoding.get("num_beams", 1)]} if decoding else {}
    return {name: ", ".join(dict.fromkeys(map(str, values))) for name, values in found.items()}
