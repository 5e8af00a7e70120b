"""The model card of a saved pipeline: what fills `model_card.jinja`."""

import json
from typing import Any

from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.tokenizer import TextEncoder
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.rendering.pages import render_page
from beem_plugin.rendering.pages.calibration import exits_table
from beem_plugin.rendering.tables import Column, Table


def model_card(
    config: dict[str, Any], model: MultiExitModel, reader: DatasetReader, evidence: dict[str, Any] | None, headline: str
) -> str:
    """Of an archived config; `evidence` is `calibration_evidence` of its policy, `headline` its speed and error."""
    encoder = config["model"].get("encoder") or {}
    base = (encoder.get("backbone") or {}).get("model_name")
    report = evidence["calibration"] if evidence else None
    return render_page(
        "model_card.jinja",
        title=f"Early-exit model of {base or 'a text encoder'}",
        # A hub name; folders and packages mean nothing to others.
        base_model=base if base and ":" not in base and not base.startswith((".", "/", "~")) else None,
        exit_layers=list(model.encoder.exit_layers),
        labels=model.vocab.labels,
        text_fields=reader.text_fields,
        max_length=reader.tokenizer.max_length if isinstance(reader.tokenizer, TextEncoder) else None,
        train=config.get("train_data_path", "unnamed data"),
        validation=config.get("validation_data_path"),
        report=report,
        headline=headline,
        exits=exits_table(report).to_markdown() if report else None,
        policy=json.dumps(model.exit_policy.to_config(), indent=2),
        curve=curve_table(evidence).to_markdown() if evidence and evidence["fixed_exits"] else None,
    )


def curve_table(evidence: dict[str, Any]) -> Table:
    """Accuracy of the policy's rule at some speed-ups, and of each exit for all samples."""
    columns = [Column("setting", "text"), Column("layer speed-up", digits=2, unit="x")]
    table = Table([*columns, Column("accuracy", digits=1, unit=" %", factor=100)])
    curve = evidence["curve"] or {"accuracy_at": {}}
    for speed, accuracy in curve["accuracy_at"].items():
        if accuracy is not None:
            table.rows.append(["exit policy", float(speed), accuracy])
    fixed = evidence["fixed_exits"]
    for number, (speed, accuracy) in enumerate(zip(fixed["speedup"], fixed["accuracy"], strict=True), 1):
        table.rows.append([f"all at exit {number}", speed, accuracy])
    return table
