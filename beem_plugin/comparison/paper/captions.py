"""Table 3: captioners under their own training, decoded under their published rules, and scored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from beem_plugin.common.params import apply_overrides
from beem_plugin.comparison.caption_scores import METRIC_NAMES, score_rows
from beem_plugin.comparison.caption_table import caption_steps, captions_of
from beem_plugin.comparison.paper.methods import CAPTION_METHODS, Choices
from beem_plugin.comparison.paper.tables import spread
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.trainings import Trainings, train_all
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.tables import Column, Table, text

PRESETS = {"mue": "mue()", "beem-a": "beem_a", "beem-c": "beem_c"}
"""Members of `beem/captions.libsonnet` of another name."""
COLUMNS = ("bleu_1", "bleu_4", "meteor", "cider", "spice", "rouge_l")


def caption_variants(
    data: str, presets: Mapping[str, str], choices: Choices, layers: int | None = None, **more: Any
) -> list[Variant]:
    """
    The methods on a task of `beem/captions.libsonnet`: `coco`, `shapes`, or one with a language model. `presets` are
    members of that file by method; "reduced" keeps `layers` blocks (default: three quarters). `more` are overrides.
    """
    more = {"evaluate_on_test": False, **more}
    more |= {} if choices.epochs is None else {"trainer.num_epochs": choices.epochs}
    captions = "(import 'beem/captions.libsonnet')"
    config = f"{captions}.{data} + {captions}.{{}}"
    if has_language_model(data):  # the image encoder stays as it came
        config = f"{captions}.with_images_as_they_come({config})"
    members = {key: config.format(preset) for key, preset in presets.items()}
    own: dict[str, Any] = {}  # of "reduced", whatever the others are given
    if "reduced" in members:
        (final,) = choices.variants({"final": config.format("final")}, data, **more)
        layers = layers or max(1, 3 * decoder_depth(final.config) // 4)
        members["reduced"] = config.format(f"reduced({layers})")
        own["model.decoder.exit_layers"] = [layers]
        if (trained := final.config["model"].get("initialize_from")) is not None:
            # An exit of the same number is another exit there.
            own["model.initialize_from"] = {"archive": trained, "include": [r"^decoder\.backbone\."]}
    return [
        replace(one, config=apply_overrides(one.config, own)) if one.name == "reduced" else one
        for one in choices.variants(members, data, **more)
    ]


def has_language_model(data: str) -> bool:
    """Whether the decoder of a task is a language model that was trained before."""
    return data.startswith("flickr8k")


def decoder_depth(config: dict[str, Any]) -> int:
    """Blocks of the decoder; of one in the hub GPT-2's twelve."""
    decoder = config["model"]["decoder"]["backbone"]["decoder"]
    return int(decoder["n_layer"]) if isinstance(decoder, dict) else 12


def run_caption_table(
    trainings: Trainings, launcher: Launcher, metrics: Sequence[str], spice_jars: str | None
) -> tuple[Table, list[dict[str, Any]]]:
    """The table, and one record a method and seed."""
    records: list[dict[str, Any]] = []
    errors = []
    for run, error in train_all([trainings], launcher, caption_steps):
        if error is not None:
            errors.append(f"error: {run}: {error}")
            continue
        kept = captions_of(run)
        for row, found in zip(kept["rows"], score_rows(kept["rows"], kept["references"], metrics, spice_jars)):
            line = {"method": row["name"], "seed": run.seed, **{k: 100 * v for k, v in found.metrics.items()}}
            records.append({**line, "layer_speedup": row["layer_speedup"], "depth": row["depth"]})
    depth = max((record["depth"] for record in records), default=1)
    for record in records:
        record["layer_speedup"] *= depth / record.pop("depth")
    order = [variant.name for variant in trainings.variants]
    records.sort(key=lambda record: (order.index(record["method"]), record["seed"]))
    columns = {name: Column(METRIC_NAMES[name], digits=1) for name in COLUMNS}
    columns["layer_speedup"] = Column("Speedup", unit="x")
    table = Table([*text("model"), *columns.values()], title="Table 3")
    for name in order:
        own = [record for record in records if record["method"] == name]
        table.rows.append([CAPTION_METHODS[name].format(layers=3 * depth // 4), *(spread(own, key) for key in columns)])
    median = f"Median over {trainings.seeds} seeds [smallest, largest]."
    table.notes = [median, "Speed-ups count blocks of the decoder.", *errors]
    return table, records
