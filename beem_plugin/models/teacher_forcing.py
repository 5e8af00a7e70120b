"""The outputs of all exits of a caption decoder for the tokens of reference captions."""

from dataclasses import dataclass, field

from torch import Tensor

from beem_plugin.models.multi_exit_decoder import MultiExitDecoder


@dataclass
class TargetOutputs:
    """
    Outputs for all target tokens: lists with one entry per exit.

    # Parameters

    features : `list[Tensor]`
        `(tokens, size)`; the logits are their products with `MultiExitDecoder.exit_weight`.
    predicted_errors : `list[Tensor]`
        `(tokens,)` each, of all exits but the last; empty without the signal.
    states : `list[Tensor]`
        `(tokens, size)`, the states that earlier exits imitate; empty if no head remembers.
    imitated : `list[Tensor]`
        `(tokens, later exits, size)`, estimates of later states; empty if heads have none.
    """

    features: list[Tensor] = field(default_factory=list)
    predicted_errors: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    imitated: list[Tensor] = field(default_factory=list)


def target_outputs(
    decoder: MultiExitDecoder, tokens: Tensor, is_target: Tensor, image_states: Tensor | None
) -> TargetOutputs:
    """
    # Parameters

    decoder : `MultiExitDecoder`
    tokens : `Tensor`
        `(batch, tokens)` int64, each caption without its last token.
    is_target : `Tensor`
        `(batch, tokens)` bool: whether the next token is predicted.
    image_states : `Tensor`, optional
    """
    outputs = TargetOutputs()
    memory: dict[str, Tensor] = {}
    for number, hidden, _ in decoder.exit_states(tokens, image_states):
        head, last = decoder.head(number), number == decoder.num_exits
        read = decoder.exit_input(number, hidden)[is_target]
        outputs.features.append(head.features(read, memory))
        if "predicted_error" in decoder.signal_modules and not last:
            outputs.predicted_errors.append(decoder.predicted_error(number, hidden[is_target]))
        if not decoder.remembers:
            continue
        state = head.state(read)
        outputs.states.append(outputs.features[-1] if last or state is None else state)
        imitated = None if last else head.imitated(read)
        if imitated is not None:
            outputs.imitated.append(imitated)
        memory.update(head.memory_after(read, memory))
    return outputs
