"""Token classification: a tag for every word, scored by entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import Archive
from beem_plugin.calibration.speed import depth_summary
from beem_plugin.calibration.token_trace import TokenTrace
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.common.files import atomic_write
from beem_plugin.common.strict_json import json_line
from beem_plugin.execution import Engine
from beem_plugin.execution.metering.macs import exit_costs
from beem_plugin.exits.token_signals import SUMMARIES, TokenSignals, TokenSummary
from beem_plugin.models.multi_exit_tagger import MultiExitTagger
from beem_plugin.tasks.task import Task, evaluation_loader


@Task.register("token_classification")
class TokenClassification(Task):
    """
    `evaluate` gives `precision`, `recall` and `f1` of entities as seqeval counts them, `token_accuracy`, the share of
    sentences without a wrong tag (`accuracy`), and the depth of sentences. Predictions are JSON lines.

    Registered as a `Task` with name "token_classification".
    """

    uses_engines = False
    benchmark_options = ()

    def check_model(self, model: Any) -> None:
        if model.exit_policy.needs_all_labels:
            raise ConfigurationError(
                f"model.exit_policy: found {model.exit_policy.registered_name}, which reads all probabilities; allowed "
                "for token classification: rules on the confidence, margin, entropy or label of an exit"
            )

    def evaluate(
        self,
        archive: Archive,
        source: str,
        batch_size: int | None = None,
        engine: Engine | None = None,
        predictions_file: str | None = None,
    ) -> dict[str, Any]:
        if engine is not None:
            raise ConfigurationError("--engine: a tagger runs its policy itself, allowed: none")
        model: Any = archive.model
        instances = archive.validation_dataset_reader.read(source)
        exits = torch.zeros(len(instances), dtype=torch.int64)
        found: list[list[str]] = [[] for _ in instances]
        for batch in evaluation_loader(archive, instances, batch_size):
            left, tags = run_policy(model, batch)
            exits[batch["index"]] = left
            for row, index in enumerate(batch["index"].tolist()):
                numbers = tags[row][batch["words"][row]].tolist()
                # A sentence is cut at the tokenizer's limit: words behind it have no entity.
                found[index] = [model.vocab.label_name(number) for number in numbers]
                found[index] += ["O"] * (len(instances[index].fields["words"]) - len(numbers))
        gold = [instance.fields["tags"] for instance in instances]
        if predictions_file is not None:
            with atomic_write(predictions_file) as file:
                for row, (instance, tags_found) in enumerate(zip(instances, found, strict=True)):
                    line = {"index": row, "exit": int(exits[row]), "words": instance.fields["words"]}
                    file.write(json_line({**line, "tags": tags_found, "gold_tags": gold[row]}))
        right = [one == other for tags_found, tags in zip(found, gold) for one, other in zip(tags_found, tags)]
        return {
            **entity_scores(gold, found),
            "token_accuracy": sum(right) / len(right),
            "accuracy": sum(one == other for one, other in zip(found, gold)) / len(gold),
            **depth_summary(exits, model.exit_layers, exit_costs(model.encoder, model.exit_policy)),
            "samples": len(instances),
            "labelled_samples": len(instances),
            "exit_policy": model.exit_policy.to_config(),
            "calibrated_on": archive.calibrated_on,
        }

    @torch.inference_mode()
    def trace(self, model: Any, batches: Iterable[dict[str, Tensor]], ids: list[str] | None, source: str) -> TokenTrace:
        was_training = model.training
        model.eval()
        parts: dict[str, list[Tensor]] = {name: [] for name in (*SUMMARIES, "target", "caption")}
        for batch in batches:
            state, words = embedded(model, batch), batch["words"].to(model.device)
            seen: list[Tensor] = []
            columns = []
            for number in range(1, len(model.exit_layers) + 1):
                state = model.encoder.advance(number, state)
                columns.append(sentence_signals(model.encoder.exit_logits(number, state), words, seen).summary)
            gold = torch.where(words, batch["label"].to(model.device), -1)
            target = sequence_numbers(gold, seen)
            parts["target"].append(torch.where(target > len(seen), 0, target).cpu())
            parts["caption"].append(batch["index"].cpu())
            for name in SUMMARIES:
                parts[name].append(torch.stack([getattr(column, name) for column in columns], 1).cpu())
        model.train(was_training)
        order = torch.cat(parts["caption"]).argsort()
        columns_of = {name: torch.cat(values)[order] for name, values in parts.items()}
        meta = {"exit_layers": model.exit_layers, "metric": model.metric, "source": source}
        if (costs := exit_costs(model.encoder)) != model.exit_layers:
            meta["exit_costs"] = costs
        position = torch.zeros_like(columns_of["caption"])
        return TokenTrace(**columns_of, signals=None, position=position, num_words=model.num_labels, meta=meta)


def embedded(model: MultiExitTagger, batch: dict[str, Tensor]) -> Any:
    """The state before layer 1."""
    named = ("input_ids", "attention_mask", "token_type_ids")
    return model.encoder.embed({name: batch[name].to(model.device) for name in named if name in batch})


def sequence_numbers(tags: Tensor, seen: Sequence[Tensor]) -> Tensor:
    """`(batch,)`: the number of the first of `seen` that equals each row of tags, or one more than there are."""
    numbers = torch.full((len(tags),), len(seen) + 1, device=tags.device)
    for number in range(len(seen), 0, -1):
        numbers[(seen[number - 1] == tags).all(1)] = number
    return numbers


def sentence_signals(logits: Tensor, words: Tensor, seen: list[Tensor]) -> TokenSignals:
    """
    What a policy reads of sentences.

    # Parameters

    logits : `Tensor`
        `(batch, tokens, labels)`
    words : `Tensor`
        `(batch, tokens)` bool
    seen : `list[Tensor]`
        The tags of earlier exits, `(batch, tokens)` with -1 outside of words; those of this exit are added.
    """
    log_probabilities = logits.double().log_softmax(-1)
    probabilities = log_probabilities.exp()
    top = probabilities.topk(2, dim=-1).values
    entropy = -(probabilities * log_probabilities).nan_to_num(nan=0.0).sum(-1)
    tags = torch.where(words, logits.argmax(-1), -1)
    numbers = sequence_numbers(tags, seen)
    seen.append(tags)
    summary = TokenSummary(
        numbers,
        torch.where(words, top[..., 0], 1.0).amin(1).float(),
        torch.where(words, entropy, 0.0).amax(1).float(),
        torch.where(words, top[..., 0] - top[..., 1], 1.0).amin(1).float(),
    )
    return TokenSignals(len(tags), tags.device, summary=lambda: summary)


@torch.inference_mode()
def run_policy(model: MultiExitTagger, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """`(batch,)` exits from 1 and `(batch, tokens)` tags under the policy. Sentences that exit leave the batch."""
    state, words, policy = embedded(model, batch), batch["words"].to(model.device), model.exit_policy
    rows = torch.arange(len(words), device=model.device)
    exits, tags = torch.zeros_like(rows), torch.full(words.shape, -1, device=model.device)
    seen: list[Tensor] = []
    memory = policy.start(len(rows), len(model.exit_layers), model.device)
    for number in range(1, len(model.exit_layers) + 1):
        state = model.encoder.advance(number, state)
        signals = sentence_signals(model.encoder.exit_logits(number, state), words, seen)
        leaves, memory = policy.step(number, signals, memory)
        leaves = leaves | (number == len(model.exit_layers))
        exits[rows[leaves]], tags[rows[leaves]] = number, seen[-1][leaves]
        stay = (~leaves).nonzero().squeeze(1)
        if not len(stay):
            break
        state, memory, words, rows = state.index_select(stay), memory.index_select(stay), words[stay], rows[stay]
        seen = [one[stay] for one in seen]
    return exits.cpu(), tags.cpu()


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Kind, first and last word of each entity in IOB1, IOB2 or IOBES tags, as seqeval's default mode finds them."""
    found, first, kind, before = set(), None, "", "O"
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if first is not None and (prefix in "BSO" or before in "ES" or name != kind):
            found.add((kind, first, place - 1))
            first = None
        if prefix != "O" and first is None:
            first, kind = place, name
        before = prefix
    return found


def entity_scores(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, float]:
    """Micro-averaged `precision`, `recall` and `f1` of entities; 0 where there is none."""
    pairs = [(entities(one), entities(other)) for one, other in zip(gold, found, strict=True)]
    right, true, predicted = (sum(map(len, sets)) for sets in zip(*((g & f, g, f) for g, f in pairs), strict=True))
    precision, recall = right / predicted if predicted else 0.0, right / true if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}
