"""Captioning: a caption for every image, each token at its own depth, and its scores."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.caption_metrics import DEFAULT_METRICS, CaptionScores, check_metrics, score_captions
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.ranks import is_main
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.instance import Instance
from beem_plugin.decoding.decoding import Decoded
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.decoding.speed import depths, encoder_depth
from beem_plugin.execution import Engine
from beem_plugin.execution.precision import cast_network
from beem_plugin.exits.policies import Final
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.caption_trace import trace_captions
from beem_plugin.tasks.caption_decoding import (
    caption_cases,
    captioner_of,
    check_references,
    decode_in_order,
    decoder_of,
    image_batches,
    one_an_image,
    write_captions,
)
from beem_plugin.tasks.task import BenchmarkOptions, Case, Task, evaluation_loader, read_instances


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
        instances = one_an_image(read_instances(archive, source), source)
        check_references(instances, source)
        loader = evaluation_loader(archive, instances, batch_size)
        policy: ExitPolicy = model.exit_policy
        policy.check_calibrated()

        def decoded(rule: ExitPolicy, what: str) -> tuple[list[GeneratedCaption], list[Decoded], CaptionScores]:
            decode = decoder_of(model, max_length=self.max_length, num_beams=self.num_beams, policy=rule)
            captions, parts = decode_in_order(decode, loader, len(instances), what)
            scores = score_captions(
                {row: tokenizer.decode(caption.tokens) for row, caption in enumerate(captions)},
                {row: instance.fields["references"] for row, instance in enumerate(instances)},
                self.metrics,
                self.spice_jars,
                self.scorer_timeout,
            )
            return captions, parts, scores

        found, parts, scores = decoded(policy, "captions")
        if predictions_file is not None and is_main():
            write_captions(predictions_file, instances, found, tokenizer, model.exit_layers)
        warnings = list(scores.warnings)
        values = {**scores.metrics, **depths(found, tokenizer, model.exit_layers), **encoder_depth(parts)}
        if self.full_depth and policy.leaves_early:
            full, full_parts, full_scores = decoded(Final(), "captions at full depth")
            values.update({f"full_depth_{name}": value for name, value in full_scores.metrics.items()})
            same = sum(one.tokens == other.tokens for one, other in zip(found, full))
            values["same_as_full_depth"] = same / len(found)
            macs = sum(part.macs.total for part in parts)
            if not math.isnan(macs):  # the model counts
                values["mac_speedup"] = sum(part.macs.total for part in full_parts) / macs
            warnings += [warning for warning in full_scores.warnings if warning not in warnings]
        values["samples"] = len(instances)
        values["caption_tokenizer"] = scores.tokenizer
        values["exit_policy"] = policy.to_config()
        values["calibrated_on"] = archive.calibrated_on
        values["warnings"] = warnings
        return values

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        if captioner_of(model).exit_policy.needs_all_labels:
            raise ConfigurationError(
                f"model.exit_policy: found {model.exit_policy.registered_name}, which reads the probabilities of all "
                "words, and a trace of captions does not keep them: the callback calibrate_exits can neither fit nor "
                "judge it; allowed: another rule, or trainer.callbacks without calibrate_exits"
            )

    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> TokenTrace:
        return trace_captions(captioner_of(model), batches, source)

    def benchmark_instances(self, archive: Archive, source: str) -> Sequence[Instance]:
        return one_an_image(read_instances(archive, source), source)

    def benchmark_cases(self, archive: Archive, options: BenchmarkOptions) -> Iterator[tuple[int, list[Case]]]:
        model = captioner_of(archive.model)
        cast_network(model, options.dtype)
        instances = (options.instances or self.benchmark_instances(archive, options.source))[: options.max_instances]
        chosen = options.skipped_blocks or (), options.num_beams, options.max_length
        for size in sorted(set(options.batch_sizes)):
            yield size, caption_cases(model, model.exit_policy, image_batches(archive, instances, size), *chosen)

    def benchmark_note(self, counted: dict[str, Any]) -> str:
        parts = [f"layer speed-up {counted['layer_speedup']:.3f}x by words"]
        if "encoder_layer_speedup" in counted:
            parts.append(f"of the image encoder {counted['encoder_layer_speedup']:.3f}x")
        if "mac_speedup" in counted:
            parts.append(f"multiply-accumulates (images and heads included) {counted['mac_speedup']:.3f}x")
        else:
            parts.append("multiply-accumulates not compared with beams, of which only the best has a length")
        return ", ".join(parts)


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
