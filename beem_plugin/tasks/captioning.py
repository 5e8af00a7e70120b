"""`allennlp evaluate` of a captioning model: captions decoded, each word at its own depth, and scored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from beem_plugin.archival import Archive
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.caption_metrics import DEFAULT_METRICS, check_metrics, score_captions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.instance import Instance
from beem_plugin.decoding.decoding import Decoded
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.meter import CaptionMacs
from beem_plugin.decoding.speed import encoder_depth
from beem_plugin.execution import Engine
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.multi_exit_captioner import MultiExitCaptioner
from beem_plugin.rendering.tables import Table
from beem_plugin.tasks.caption_benchmark import benchmark_captions, caption_benchmark_table, image_batches_by_size
from beem_plugin.tasks.caption_data import check_references, depths, one_an_image, write_captions
from beem_plugin.tasks.caption_trace import trace_captions
from beem_plugin.tasks.task import BenchmarkOptions, Task, evaluation_loader


@Task.register("captions")
class Captioning(Task):
    """
    Decodes a caption for every image, under the archive's policy and at full depth, and scores both once over the whole
    split.

    The metrics are `bleu_1` to `bleu_4`, `meteor`, `rouge_l`, `cider` and `spice` of the policy's captions, the same at
    full depth under `full_depth_*`; `layer_speedup` and its like count tokens, the end token among them; `mac_speedup`
    is the multiply-accumulates of all captions at full depth over those under the policy, image encoder and heads
    included (a policy whose captions are longer pays for it; with beams, of the two searches, all their beams).
    `encoder_layer_speedup`: blocks of the image encoder over those run, where images may leave it early.
    `same_as_full_depth` is the share of captions that are equal; `average_exit_by_word` and `exit_histogram_by_word`
    are the depth of first words, function words, content words and the end (see `exits_by_class`). A decoder that has
    collapsed shows in `distinct_captions`, in `unfinished_captions`, which reached `max_length` before they ended, and
    in `repeating_captions`, in which a word follows itself. `caption_tokenizer` is what split the words that are
    scored: `"ptb"`, or `"simple"` where there is no Java.

    Predictions are COCO's result format, `[{"image_id", "caption"}]`; a file whose name ends in `.jsonl` gets a line an
    image, with the exit of every word.

    Registered as a `Task` with name "captions".

    # Parameters

    metrics : `list[str]`, optional (default = `["bleu", "meteor", "rouge_l", "cider"]`)
        `"spice"` may be added, and is where `spice_jars` are given alone.
    spice_jars : `str`, optional (default = `None`)
        For `"spice"`: a folder with the jars of CoreNLP 3.6.0 and its models.
    full_depth : `bool`, optional (default = `True`)
        Whether captions are decoded a second time without exits, to compare with.
    max_length : `int`, optional (default = the model's)
        Tokens a caption.
    num_beams : `int`, optional (default = the model's)
        1 is greedy decoding.
    scorer_timeout : `float`, optional (default = `1800`)
        Seconds for each Java program.
    """

    uses_engines = False
    benchmark_options = ("skipped_blocks", "num_beams", "max_length")

    def __init__(
        self,
        metrics: list[str] | None = None,
        spice_jars: str | None = None,
        full_depth: bool = True,
        max_length: int | None = None,
        num_beams: int | None = None,
        scorer_timeout: float = 1800.0,
    ) -> None:
        if metrics is None:
            metrics = [*DEFAULT_METRICS, *(["spice"] if spice_jars is not None else [])]
        self.metrics = metrics
        self.spice_jars = spice_jars
        self.full_depth = full_depth
        self.max_length = max_length
        self.num_beams = num_beams
        self.scorer_timeout = scorer_timeout

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        if engine is not None:
            raise ConfigurationError("--engine: a captioning model decodes by itself, allowed: none")
        model: Any = archive.model
        tokenizer = caption_tokenizer_of(archive.validation_dataset_reader)
        check_metrics(self.metrics, self.spice_jars)
        instances = one_an_image(archive.validation_dataset_reader.read(source), source)
        check_references(instances, source)
        loader = evaluation_loader(archive, instances, batch_size)
        policy: ExitPolicy = model.exit_policy
        policy.check_calibrated()
        found, parts = self._decode(model, loader, len(instances), policy, "captions")
        if predictions_file is not None:
            write_captions(predictions_file, instances, found, tokenizer, model.exit_layers)
        values, warnings, scored_by = self._score(instances, found, tokenizer)
        values.update(depths(found, tokenizer, model.exit_layers))
        values.update(encoder_depth(parts))
        if self.full_depth and policy.leaves_early:
            final = ExitPolicy.from_params({"type": "final"})
            full, full_parts = self._decode(model, loader, len(instances), final, "captions at full depth")
            full_scores, full_warnings, _ = self._score(instances, full, tokenizer)
            values.update({f"full_depth_{name}": value for name, value in full_scores.items()})
            same = sum(one.tokens == other.tokens for one, other in zip(found, full))
            values["same_as_full_depth"] = same / len(found)
            macs = sum(part.macs.total for part in parts)
            if not math.isnan(macs):  # the model counts
                values["mac_speedup"] = sum(part.macs.total for part in full_parts) / macs
            warnings += [warning for warning in full_warnings if warning not in warnings]
        values["samples"] = len(instances)
        values["caption_tokenizer"] = scored_by
        values["exit_policy"] = policy.to_config()
        values["calibrated_on"] = archive.calibrated_on
        values["warnings"] = warnings
        return values

    def check_model(self, model: Any) -> None:
        if captioner_of(model).exit_policy.needs_all_labels:
            raise ConfigurationError(
                f"model.exit_policy: found {model.exit_policy.registered_name}, which reads the probabilities of all "
                "words, and a trace of captions does not keep them: the callback calibrate_exits can neither fit nor "
                "judge it; allowed: another rule, or trainer.callbacks without calibrate_exits"
            )

    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> TokenTrace:
        return trace_captions(captioner_of(model), batches, source)

    def benchmark(self, archive: Archive, options: BenchmarkOptions) -> dict[str, Any]:
        model = captioner_of(archive.model)
        cast_network(model, options.dtype)
        return benchmark_captions(
            model,
            model.exit_policy,
            image_batches_by_size(archive, options.source, options.max_instances),
            options.batch_sizes,
            options.skipped_blocks or [],
            options.repeats,
            options.num_beams,
            options.max_length,
            options.time_budget,
        )

    def benchmark_table(self, report: dict[str, Any]) -> Table:
        return caption_benchmark_table(report)

    def _decode(
        self, model: Any, loader: Any, count: int, policy: ExitPolicy, what: str
    ) -> tuple[list[GeneratedCaption], list[Decoded]]:
        """A caption for every instance, in the order of the data, and what each batch cost."""
        captions: list[GeneratedCaption | None] = [None] * count
        parts = []
        with torch.inference_mode(), tqdm(total=count, desc=what, unit=" images", mininterval=0.5) as bar:
            for batch in loader:
                rows = batch["index"].tolist()
                parts.append(decode(model, batch, self.max_length, self.num_beams, policy))
                for row, caption in zip(rows, parts[-1].captions, strict=True):
                    captions[row] = caption
                bar.update(len(rows))
        return [caption for caption in captions if caption is not None], parts

    def _score(
        self, instances: Sequence[Instance], captions: Sequence[GeneratedCaption], tokenizer: CaptionTokenizer
    ) -> tuple[dict[str, Any], list[str], str]:
        result = score_captions(
            {row: tokenizer.decode(caption.tokens) for row, caption in enumerate(captions)},
            {row: instance.fields["references"] for row, instance in enumerate(instances)},
            self.metrics,
            self.spice_jars,
            self.scorer_timeout,
        )
        return dict(result.metrics), list(result.warnings), result.tokenizer


def captioner_of(model: Any) -> MultiExitCaptioner:
    """The model, if it is a captioner."""
    if not isinstance(model, MultiExitCaptioner):
        raise ConfigurationError(f"found a model {type(model).__name__}, allowed: multi_exit_captioner")
    return model


def caption_tokenizer_of(reader: Any) -> CaptionTokenizer:
    """The tokenizer of a dataset reader, if it is one of captions."""
    if not isinstance(reader.tokenizer, CaptionTokenizer):
        raise ConfigurationError("a captioning model needs a dataset reader of captions")
    return reader.tokenizer


def calibration_trace_of(archive: Archive, where: str) -> TokenTrace:
    """The trace of captions that an archive holds."""
    trace = archive.calibration.trace if archive.calibration is not None else None
    if not isinstance(trace, TokenTrace):
        raise ConfigurationError(f"{where}: has open numbers, and the archive no calibration trace to fit them on")
    return trace


def decode(
    model: Any, batch: dict[str, torch.Tensor], max_length: int | None, num_beams: int | None, policy: ExitPolicy
) -> Decoded:
    """The model's captions of a batch, and what they cost where the model counts that, else NaN."""
    device = next(model.parameters()).device
    inputs = {name: value.to(device) for name, value in batch.items()}
    options: dict[str, Any] = {"max_length": max_length, "num_beams": num_beams, "policy": policy}
    if not hasattr(model, "decode"):
        return Decoded(model.generate(inputs, **options), CaptionMacs(images=math.nan))
    return model.decode(inputs, **options)
