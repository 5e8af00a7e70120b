"""What each exit gives for texts, at the model's operating point and at others of its calibration trace."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from beem_plugin.calibration.operating_points import exit_readings, operating_points, threshold_policy
from beem_plugin.calibration.trace import ExitTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.metrics import MAIN_SCORE
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.models.multi_exit_trace import trace_model
from beem_plugin.rendering.pages import render_page

BATCH_SIZE = 32
POINT = ("speedup", "metric", "shares", "thresholds", "is_current")


class TextPage:
    """The page for a model of one label or value a text, its policy calibrated, and its calibration trace."""

    def __init__(self, model: MultiExitModel, reader: DatasetReader, trace: ExitTrace | None) -> None:
        if getattr(model.encoder, "output_per_token", False):
            raise ConfigurationError("--html: found a model of tags, allowed: one of labels, values or captions")
        self.model, self.reader, self.trace = model, reader, trace

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the page shows of the model; `points` are its operating points, from slow to fast."""
        policy, model = self.model.exit_policy, self.model
        inner = threshold_policy(policy)
        return {
            "columns": list(self.reader.text_fields),
            "labels": [] if model.vocab.is_regression else list(model.vocab.labels),
            "exit_layers": list(model.encoder.exit_layers),
            "policy": policy.registered_name if inner in (None, policy) else inner.registered_name,  # type: ignore[union-attr]
            "higher": None if inner is None else inner.higher_is_more_confident,
            "metric": MAIN_SCORE[model.metric].replace("_", " "),
            "points": [{name: getattr(point, name) for name in POINT} for point in self._points],
        }

    @cached_property
    def _points(self) -> list[Any]:
        return operating_points(self.model.exit_policy, self.trace)

    def entries(self, instances: Sequence[Instance], gold: Sequence[str | None] | None = None) -> list[dict[str, Any]]:
        """An entry a text. All exits are computed, also those after the text's own."""
        if not instances:
            return []
        collate = self.reader.collator(self.model.vocab, self.reader.tokenizer.pad_token_id)

        starts = range(0, len(instances), BATCH_SIZE)
        parts = ((instances[start : start + BATCH_SIZE], start) for start in starts)
        batches = (collate(part, range(start, start + len(part))) for part, start in parts)
        readings = exit_readings(self._points, trace_model(self.model, batches, None, "the page's texts"))
        names = self.reader.text_fields
        return [
            {"texts": [str(instance.fields[name]) for name in names], "gold": label, **reading}
            for instance, label, reading in zip(instances, gold or [None] * len(instances), readings, strict=True)
        ]

    def html(self, entries: Sequence[dict[str, Any]], is_served: bool = False) -> str:
        """The page of these entries; one that `is_served` asks its server about texts that are typed in."""
        data, labels = self.data, self.data["labels"]
        current = next(number for number, point in enumerate(data["points"]) if point["is_current"])
        return render_page(
            "texts.html",
            data=data,
            texts=entries,
            rows=sorted(enumerate(entries), key=lambda pair: pair[1]["leaves"][current]),
            current=current,
            depth=data["exit_layers"][-1],
            is_served=is_served,
            shown=lambda answer: labels[int(answer)] if labels else f"{answer:.3g}",
            content={"model": data, "texts": list(entries), "current": current},
        )
