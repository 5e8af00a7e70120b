"""Table 3: captioners under their own training, decoded under their published rules, and scored."""

import json
from collections.abc import Sequence
from typing import Any

from beem_plugin.comparison.caption_runs import caption_steps, captions_of
from beem_plugin.comparison.caption_scores import METRIC_NAMES, score_rows
from beem_plugin.comparison.paper.methods import CAPTION_METHODS, Choices
from beem_plugin.comparison.paper.tables import spread
from beem_plugin.comparison.trainings.launcher import Launcher
from beem_plugin.comparison.trainings.trainings import Trainings
from beem_plugin.comparison.trainings.variants import Variant
from beem_plugin.rendering.tables import Column, Table, text

PRESETS = {"reduced": "reduced({layers})", "mue": "mue()", "beem-a": "beem_a", "beem-c": "beem_c"}
"""Members of `beem/captions.libsonnet` of another name."""
COLUMNS = ("bleu_1", "bleu_4", "meteor", "cider", "spice", "rouge_l")


def caption_variants(data: str, methods: Sequence[str], choices: Choices) -> list[Variant]:
    """
    The methods on a task of `beem/captions.libsonnet`: `coco`, `shapes`, or one whose decoder is a language model that
    was trained before, `flickr8k` and `flickr8k_large`; the image encoder of these stays as it came.
    """
    more = {"evaluate_on_test": False} | ({} if choices.epochs is None else {"trainer.num_epochs": choices.epochs})
    captions = "(import 'beem/captions.libsonnet')"
    config = f"{captions}.{data} + {captions}.{{}}"
    if data.startswith("flickr8k"):
        config = f"{captions}.with_images_as_they_come({config})"
    (final,) = choices.variants({"final": config.format("final")}, data, **more)
    layers = max(1, 3 * decoder_depth(final.config) // 4)
    members = {key: config.format(PRESETS.get(key, key).format(layers=layers)) for key in methods}
    language_model = final.config["model"].get("initialize_from")
    if language_model is not None and "reduced" in members:  # an exit of the same number is another exit there
        blocks = {"archive": language_model, "include": [r"^decoder\.backbone\."]}
        members["reduced"] += f" + {{ model+: {{ initialize_from: {json.dumps(blocks)} }} }}"
    return choices.variants(members, data, **more)


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
    for run, error in trainings.train(launcher, caption_steps):
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
    columns = [*(Column(METRIC_NAMES[name], digits=1) for name in COLUMNS), Column("Speedup", unit="x")]
    table = Table([*text("model"), *columns], title="Table 3")
    for name in order:
        own = [record for record in records if record["method"] == name]
        cells = [spread(own, key) for key in (*COLUMNS, "layer_speedup")]
        table.rows.append([CAPTION_METHODS[name].format(layers=3 * depth // 4), *cells])
    median = f"Median over {trainings.seeds} seeds [smallest, largest]."
    table.notes = [median, "Speed-ups count blocks of the decoder.", *errors]
    return table, records
