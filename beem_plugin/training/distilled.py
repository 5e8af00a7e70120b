"""Distillation from an archived model."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beem_plugin.archival import load_archive
from beem_plugin.common.errors import BeemError, ConfigurationError, check_choice, check_number
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.exits.outputs import ExitOutputs
from beem_plugin.models.multi_exit_model import MultiExitModel
from beem_plugin.objectives import Objective, WeightedDistillation
from beem_plugin.objectives.exit_loss import DIRECTIONS, softened_divergence
from beem_plugin.objectives.exit_weights import REDUCTIONS
from beem_plugin.tasks.classification import text_model

logger = logging.getLogger(__name__)


@Objective.register("distilled")
class Distilled(Objective):
    """
    Every exit learns from the last exit of another, trained model (Hinton et al. 2015): with p_T its probabilities,

        loss = (1 - weight) * loss of `objective` + weight * mean_i T^2 KL(p_T || p_i) + hidden_states_weight * MSE,

    T the temperature, which softens both distributions; in a regression (y_i - y_T)^2 replaces the KL. The KL is a mean
    over all samples, with or without a label, and over the exits unless `reduction` is `"sum"`. The teacher runs in
    evaluation mode and without gradient, and is no part of the archive. Where it is not loaded, as in the evaluation of
    an archive, the loss is that of `objective` alone.

    Registered as an `Objective` with name "distilled".

    # Parameters

    teacher : `str`
        A `model.tar.gz` or a serialization directory; same tokenizer and labels.
    objective : `Objective`, optional (default = `"weighted_distillation"` with uniform weights and distillation off)
        The student's own loss.
    weight : `float`, optional (default = `0.5`)
        0 to 1.
    temperature : `float`, optional (default = `2.0`)
    direction : `str`, optional (default = `"teacher_student"`)
        `"student_teacher"` is KL(p_i || p_T), `"symmetric"` half of each.
    hidden_states_weight : `float`, optional (default = `0.0`)
        Of the mean squared distance, over real tokens, between the hidden states at each exit and the teacher's at the
        same relative depth (TinyBERT, Jiao et al. 2020, without a map between sizes); in training only.
    reduction : `str`, optional (default = `"mean"`)
        Of the KL over the exits: `"mean"`, or `"sum"` beside an `objective` that sums over them.
    """

    serves_regression = True  # where `objective` does

    def __init__(
        self,
        teacher: str,
        objective: Objective | None = None,
        weight: float = 0.5,
        temperature: float = 2.0,
        direction: str = "teacher_student",
        hidden_states_weight: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        check_number("weight", weight, high=1)
        check_number("temperature", temperature, open_low=True)
        check_choice("direction", direction, DIRECTIONS)
        check_number("hidden_states_weight", hidden_states_weight)
        self.objective = objective if objective is not None else WeightedDistillation("uniform", "off")
        self.required_signals = self.objective.required_signals
        self.teacher = teacher
        self.weight = weight
        self.temperature = temperature
        self.direction = direction
        self.hidden_states_weight = hidden_states_weight
        self.reduction = reduction
        # In a list, so that it is no submodule: neither trained nor saved.
        self._loaded: list[MultiExitModel] = []

    def start_training(self, vocab: Vocabulary, tokenizer: Any) -> None:
        super().start_training(vocab, tokenizer)
        if not Path(self.teacher).exists():
            raise ConfigurationError(f"objective.teacher: found no {self.teacher}, allowed: an archive or its folder")
        try:
            archive = load_archive(self.teacher)
            model = text_model(archive.model)
        except BeemError as error:
            raise ConfigurationError(f"objective.teacher: {self.teacher} cannot be a teacher: {error}") from error
        if model.vocab.labels != vocab.labels:
            raise ConfigurationError(
                f"objective.teacher: {self.teacher} has the labels {model.vocab.labels}, allowed: {vocab.labels}"
            )
        theirs = getattr(archive.dataset_reader, "tokenizer", None)
        if tokenizer is not None and theirs is not None and token_ids(theirs) != token_ids(tokenizer):
            raise ConfigurationError(
                f"objective.teacher: {self.teacher} has another tokenizer ({theirs.model_name!r}) than the model "
                f"({tokenizer.model_name!r}), allowed: a teacher with the same tokenizer"
            )
        logger.info("Distilling from %s", self.teacher)
        self._loaded = [model.requires_grad_(False).eval()]

    def loss(self, outputs: ExitOutputs, label: Tensor) -> dict[str, Tensor]:
        own = self.objective.loss(outputs, label)
        if not self._loaded:
            return own
        logits, hidden_states = self._teach(outputs)
        student, teacher = outputs.logits.float(), logits.unsqueeze(1)
        of_exits = softened_divergence(student, teacher, self.temperature, self.direction).mean(0)
        distillation = of_exits.sum() if self.reduction == "sum" else of_exits.mean()
        loss = (1 - self.weight) * own["loss"] + self.weight * distillation
        components = {**own, "distillation": distillation.detach()}
        if self.hidden_states_weight > 0 and outputs.hidden_states:
            distance = self._distance(outputs, hidden_states)
            loss = loss + self.hidden_states_weight * distance
            components["hidden_distance"] = distance.detach()
        return {**components, "loss": loss}

    @torch.no_grad()
    def _teach(self, outputs: ExitOutputs) -> tuple[Tensor, list[Tensor]]:
        """The teacher's logits `(batch, labels)` and its hidden states at the exits' relative depths."""
        encoder = self._loaded[0].to(outputs.logits.device).encoder
        state = encoder.embed(outputs.inputs)
        hidden = [state.hidden_states]
        by_layer = not (encoder.carries_memory or encoder.tokens_leave)
        for exit_number, last in enumerate(encoder.exit_layers, 1):
            first = len(hidden)
            if by_layer:
                for layer in range(first, last + 1):
                    state = encoder.backbone.layer(layer, state)
                    hidden.append(state.hidden_states)
            else:
                # Between its exits such a teacher gives no hidden states: those of the next exit stand for them.
                state = encoder.advance(exit_number, state)
                hidden += [state.hidden_states] * (last + 1 - first)
        assert self.exit_layers is not None
        depth = self.exit_layers[-1]
        matched = [hidden[round(layer / depth * encoder.exit_layers[-1])] for layer in self.exit_layers]
        return encoder.exit_logits(encoder.num_exits, state).float(), matched

    def _distance(self, outputs: ExitOutputs, teacher: list[Tensor]) -> Tensor:
        if teacher[0].shape[-1] != outputs.hidden_states[0].shape[-1]:
            raise ConfigurationError(
                f"objective.hidden_states_weight: found {self.hidden_states_weight} with a teacher of hidden size "
                f"{teacher[0].shape[-1]}, allowed: 0, or a teacher of size {outputs.hidden_states[0].shape[-1]}"
            )
        real = outputs.inputs["attention_mask"].bool()
        pairs = zip(outputs.hidden_states, teacher, strict=True)
        return torch.stack(
            [(mine[real].float() - theirs[real].float()).square().mean() for mine, theirs in pairs]
        ).mean()


def token_ids(tokenizer: Any) -> dict[str, int]:
    """The vocabulary of a reader's tokenizer."""
    return tokenizer.tokenizer.get_vocab()
