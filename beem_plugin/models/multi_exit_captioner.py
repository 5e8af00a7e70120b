"""Image captioning with exits in the decoder."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from beem_plugin.calibration.token_trace import CALIBRATION_TARGETS
from beem_plugin.common.errors import ConfigurationError, check_choice, check_number
from beem_plugin.common.registry import Lazy
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.decoding import CaptionDecoding, Decoded, GeneratedCaption
from beem_plugin.exits.policy import ExitPolicy
from beem_plugin.models.caption_exits import check_caption_policy
from beem_plugin.models.exit_metrics import TokenMetrics
from beem_plugin.models.model import ExitModel, Model, evaluating
from beem_plugin.models.multi_exit_decoder import MultiExitDecoder
from beem_plugin.models.saved_weights import InitialWeights
from beem_plugin.objectives import Objective
from beem_plugin.objectives.chunked import CHUNK_ELEMENTS, chunked_loss


@Model.register("multi_exit_captioner")
class MultiExitCaptioner(ExitModel):
    """
    An image encoder and a decoder with exits, with training objective and exit policy.

    Training and validation use teacher forcing and run all exits. A batch without `pixel_values` trains the decoder as
    a language model, without image encoder and cross-attention; distributed training needs these in `no_grad`.

    Registered as a `Model` with name "multi_exit_captioner".

    # Parameters

    vocab : `Vocabulary`
        Filled in; captions have no labels.
    tokenizer : `Any`
        Filled in from the dataset reader: `bos_token_id`, `eos_token_id`, `vocab_size`.
    decoder : `MultiExitDecoder`
    objective : `Objective`, optional (default = `"weighted_distillation"`)
        The objective of the BEEM paper, for every token; or another one that reads only logits and labels, or the
        estimates of heads that imitate later exits (`"imitation"`, with `decoder.head: "past_future"`).
    exit_policy : `ExitPolicy`, optional (default = `"final"`)
        Decides for every token; its state is reset at each token. Thresholds and weights that are not given are fitted,
        except for policies that read all probabilities, which a trace of captions does not store.
    decoding : `CaptionDecoding`, optional
        Beams, maximum length, and the treatment of skipped blocks. By default `max_length` is limited to the number of
        positions of the decoder.
    calibration_target : `str`, optional (default = `"reference"`)
        The correct token when the policy is calibrated with teacher forcing: the next token of the `"reference"`, or
        the prediction of the `"last_exit"` (CALM's consistency), which makes the last exit's error 0.
    predicted_error_weight : `float`, optional (default = `1.0`)
        Weight of the squared error of the signal `predicted_error`, if the decoder has it. It is trained to predict
        whether the token of an exit is wrong according to `calibration_target`.
    initialize_from : `InitialWeights` or `str`, optional (default = `None`)
        An archive with initial weights of the decoder.
    chunk_elements : `int`, optional (default = `2**24`)
        Number of logits in memory at a time in training; larger values are faster on a large GPU.
    """

    default_predictor = "captioner"
    task = "captions"

    def __init__(
        self,
        vocab: Vocabulary,
        tokenizer: Any,
        decoder: Lazy[MultiExitDecoder],
        objective: Objective | None = None,
        exit_policy: ExitPolicy | None = None,
        decoding: CaptionDecoding | None = None,
        calibration_target: str = "reference",
        predicted_error_weight: float = 1.0,
        initialize_from: InitialWeights | str | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> None:
        super().__init__(vocab)
        check_choice("model.calibration_target", calibration_target, CALIBRATION_TARGETS)
        check_number("model.chunk_elements", chunk_elements, low=1)
        self.bos_token_id = int(tokenizer.bos_token_id)
        self.eos_token_id = int(tokenizer.eos_token_id)
        self.decoder = decoder.construct(vocab_size=int(tokenizer.vocab_size))
        self.exit_layers, self.num_exits = self.decoder.exit_layers, self.decoder.num_exits
        # The default must be valid for every decoder.
        max_length = min(CaptionDecoding().max_length, self.decoder.backbone.decoder.max_positions)
        self.decoding = decoding if decoding is not None else CaptionDecoding(max_length=max_length)
        self.calibration_target = calibration_target
        self.predicted_error_weight = predicted_error_weight
        self.chunk_elements = chunk_elements
        self.metric = "accuracy"
        self.metrics = TokenMetrics(self.num_exits)
        self._set_rules(objective, exit_policy)
        check_caption_policy(self.exit_policy)
        self.decoding.check_network(self.decoder, "model.decoding.")
        if initialize_from is not None:
            source = InitialWeights(initialize_from) if isinstance(initialize_from, str) else initialize_from
            source.copy_into(self)

    def check_objective(self) -> None:
        if signals := self.objective.required_signals:
            raise ConfigurationError(
                f"model.objective: {type(self.objective).__name__} trains the signals {', '.join(signals)}; allowed "
                "for captions: objectives without signals; `decoder.signals: ['predicted_error']` has its own loss"
            )
        self.objective.bind(self.exit_layers, self.decoder.num_labels)

    @property
    def exit_network(self) -> MultiExitDecoder:
        return self.decoder

    def parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """
        As `ExitModel.parts`, and `image_encoder` (with the projection to the decoder's size) and `cross_attention`,
        which belong to the `backbone`, as the decoder with its vocabulary; `last_exit` is the final normalisation.
        """

        def matching(*keys: str) -> list[torch.nn.Parameter]:
            named = self.decoder.backbone.named_parameters()
            return [value for name, value in named if any(key in name for key in keys)]

        image_encoder = matching("transformer_model.encoder.", "enc_to_dec_proj")
        cross_attention = matching("crossattention", "ln_cross_attn")
        return {**super().parts(), "image_encoder": image_encoder, "cross_attention": cross_attention}

    def train(self, mode: bool = True) -> "MultiExitCaptioner":
        if mode:  # compiled decoders are valid for the current weights only, and training needs their memory
            self.decoding.compiled.clear()
        return super().train(mode)

    def forward(  # type: ignore[override]  # named arguments instead of **batch
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor | None = None,
        image_of_row: Tensor | None = None,
        **other: Any,
    ) -> dict[str, Any]:
        """
        The `loss` of the objective, a mean over tokens, and its components. `input_ids` are `(batch, tokens)`: BOS,
        caption, EOS, padding; the mask is 0 at padding. `pixel_values` are `(images, channels, height, width)`, and
        `image_of_row` `(batch,)` the index of each caption's image, by default that of the caption.
        """
        given = {"pixel_values": pixel_values, "image_of_row": image_of_row}
        inputs = {name: value for name, value in given.items() if value is not None}
        images = None if pixel_values is None else self.decoder.image_states(inputs)
        is_target = attention_mask[:, 1:].bool()
        target = input_ids[:, 1:][is_target]  # (tokens,)
        exits = self.decoder.target_outputs(input_ids[:, :-1], is_target, images)
        weights = [self.decoder.exit_weight(number) for number in range(1, self.num_exits + 1)]
        extras = {"imitated": exits.imitated} if exits.imitated else {}
        found = chunked_loss(self.objective, exits.features, weights, target, self.chunk_elements, exits.states, extras)
        output: dict[str, Any] = {"loss": found.loss, **found.components}
        if exits.predicted_errors:
            correct = target if self.calibration_target == "reference" else found.predictions[:, -1]
            wrong = (found.predictions[:, :-1] != correct.unsqueeze(1)).float()
            error = (torch.stack(exits.predicted_errors, 1) - wrong).square().sum() / max(wrong.numel(), 1)
            output["loss"] = output["loss"] + self.predicted_error_weight * error
            output["predicted_error"] = error.detach()
        self.metrics.update(found.predictions, found.negative_log_likelihood.detach(), target)
        return output

    def loss_units(self, batch: Mapping[str, Tensor]) -> int:
        """Number of target tokens, EOS included: the loss is a mean over tokens."""
        return int(batch["attention_mask"][:, 1:].sum())

    def generate(
        self,
        batch: dict[str, Tensor],
        max_length: int | None = None,
        num_beams: int | None = None,
        policy: ExitPolicy | None = None,
    ) -> list[GeneratedCaption]:
        """One caption for each image of `batch`; the other arguments replace those of `decoding` and of the model."""
        return self.decode(batch, max_length, num_beams, policy).captions

    def decode(
        self,
        batch: Mapping[str, Tensor],
        max_length: int | None = None,
        num_beams: int | None = None,
        policy: ExitPolicy | None = None,
        decoding: CaptionDecoding | None = None,
    ) -> Decoded:
        """As `generate`, with multiply-accumulates; `decoding` is used in place of the model's."""
        inputs = {name: batch[name].to(self.device) for name in ("pixel_values", "image_states") if name in batch}
        if "image_of_row" in batch:
            inputs["pixel_values"] = inputs["pixel_values"][batch["image_of_row"].to(self.device)]
        rule, tokens = self.exit_policy if policy is None else policy, (self.bos_token_id, self.eos_token_id)
        with evaluating(self):
            return (decoding or self.decoding).run(self.decoder, rule, inputs, *tokens, max_length, num_beams)
