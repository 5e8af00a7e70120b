from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from beem_plugin.calibration.replay import replay
from beem_plugin.common.archive_files import save_state
from beem_plugin.common.errors import ConfigurationError
from beem_plugin.decoding.generated import GeneratedCaption
from beem_plugin.models import MultiExitCaptioner
from beem_plugin.models.caption_trace import trace_captions
from beem_plugin.models.saved_weights import InitialWeights
from beem_plugin.training.evaluation import merge_metric_states
from tests.tiny_captioner import BOS, WORDS, batch, captioner, images, policy


@torch.no_grad()
def test_loss_and_metrics_are_those_of_every_real_word() -> None:
    """Worked out from transformers' own logits, caption by caption."""
    model = captioner(objective={"type": "weighted_distillation", "distillation": "off"})
    data = batch(padding=7)  # the mask alone says what is padding
    losses, right, words = torch.zeros(6, dtype=torch.float64), 0, 0
    for row in range(5):
        length = int(data["attention_mask"][row].sum())
        tokens = data["input_ids"][row : row + 1, :length]
        full = model.decoder.backbone.transformer_model(  # type: ignore[operator]
            pixel_values=data["pixel_values"][row : row + 1],
            decoder_input_ids=tokens[:, :-1],
            output_hidden_states=True,
        )
        decoder = model.decoder.backbone.decoder
        states = [*full.decoder_hidden_states[1:-1], None]
        for number, hidden in enumerate(states):
            # Untrained heads are copies of the final normalisation.
            logits = (
                full.logits if hidden is None else functional.linear(decoder.final_norm(hidden), decoder.output_weight)
            )
            losses[number] += functional.cross_entropy(logits[0], tokens[0, 1:], reduction="sum").double()
        right += int((full.logits[0].argmax(-1) == tokens[0, 1:]).sum())
        words += length - 1
    output = model(**data)
    weights = torch.arange(1, 7) / 21
    assert float(output["loss"]) == pytest.approx(float((weights * losses / words).sum()), rel=1e-5)
    metrics = model.get_metrics(reset=True)
    assert metrics["token_accuracy"] == pytest.approx(right / words)
    assert metrics["perplexity"] == pytest.approx(float((losses[-1] / words).exp()), rel=1e-4)
    assert metrics["exit_1_perplexity"] == pytest.approx(float((losses[0] / words).exp()), rel=1e-4)
    assert set(metrics) >= {f"exit_{number}_token_accuracy" for number in range(1, 7)}
    assert model.get_metrics() == {}


@torch.no_grad()
def test_images_that_repeat_are_encoded_once() -> None:
    model, data = captioner(), batch()
    image_of_row = torch.tensor([0, 1, 1, 0, 2])
    once = {**data, "pixel_values": data["pixel_values"][:3], "image_of_row": image_of_row}
    repeated = {**data, "pixel_values": data["pixel_values"][image_of_row]}
    assert torch.allclose(model(**once)["loss"], model(**repeated)["loss"], rtol=1e-5)
    assert model.generate(once) == model.generate(repeated)
    index = {"index": torch.arange(5)}
    traces = [trace_captions(model, [{**one, **index}], "train") for one in (once, repeated)]
    assert torch.equal(traces[0].top_token, traces[1].top_token)


@torch.no_grad()
def test_imitations_are_compared_with_the_states_that_came() -> None:
    """DeeCap's loss, from the heads themselves, whatever the chunks."""
    keys: dict[str, Any] = {"decoder": {"head": "past_future"}, "objective": {"type": "imitation", "weight": 0.5}}
    model, data = captioner(**keys, chunk_elements=50 * 6 * 7), batch()
    decoder, counted = model.decoder, data["attention_mask"][:, 1:].bool()
    target = data["input_ids"][:, 1:][counted]
    hidden = [
        state[counted] for _, state, _ in decoder.exit_states(data["input_ids"][:, :-1], decoder.image_states(data))
    ]
    heads: list[Any] = list(decoder.exits)
    for head in heads[:-1]:
        for parameter in head.imitators.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    states = [head.norm(value) for head, value in zip(heads, hidden)]  # the last one's norm is the decoder's own
    distances, cross_entropies = [], []
    for number, head in enumerate(heads[:-1]):
        for later, imitator in enumerate(head.imitators, number + 1):
            similarity = functional.cosine_similarity(imitator(states[number]), states[later], dim=-1)
            distances.append(1 - similarity)
        past = torch.stack(states[: number + 1]).mean(0)
        future = torch.stack([imitator(states[number]) for imitator in head.imitators]).mean(0)
        logits = functional.linear((past + future) / 2, decoder.backbone.decoder.output_weight)
        cross_entropies.append(functional.cross_entropy(logits, target))
    last = functional.linear(states[-1], decoder.backbone.decoder.output_weight)
    cross_entropies.append(functional.cross_entropy(last, target))
    weights = torch.arange(1, 7) / 21
    imitation = torch.stack(distances).mean()
    expected = ((weights * torch.stack(cross_entropies)).sum() + 0.5 * imitation) / 2
    output = model(**data)
    assert float(output["imitation"]) == pytest.approx(float(imitation), rel=1e-4)
    assert float(output["loss"]) == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ConfigurationError, match="past_future"):
        captioner(objective="imitation")(**data)


def test_metric_states_add_up() -> None:
    model, halves = captioner(), (batch(3, 1), batch(5, 2))
    with torch.no_grad():
        states = []
        for half in halves:
            model(**half)
            states.append(model.metric_state())
            model.get_metrics(reset=True)
        for half in halves:
            model(**half)
    expected = model.get_metrics()
    model.load_metric_state(merge_metric_states(states))
    assert model.get_metrics() == pytest.approx(expected)


@pytest.mark.parametrize("head", ["tied", "untied", {"type": "low_rank", "rank": 8}, "linear_shortcut"])
@pytest.mark.parametrize("exit_layers", [None, [1, 4, 6]])
def test_every_parameter_learns(head: Any, exit_layers: list[int] | None) -> None:
    model = captioner(decoder={"head": head, "exit_layers": exit_layers, "signals": ["predicted_error"]}).train()
    output = model(**batch())
    output["loss"].backward()
    idle = [
        name
        for name, value in model.named_parameters()
        if value.requires_grad and (value.grad is None or not value.grad.any())
    ]
    # The bias of keys changes no attention.
    assert not [name for name in idle if "key" not in name and "k_proj" not in name]
    assert set(output) == {"loss", "cross_entropy", "divergence", "predicted_error"}


def test_text_alone_trains_the_decoder_as_a_language_model() -> None:
    model = captioner().train()
    data = batch()
    del data["pixel_values"]
    model(**data)["loss"].backward()
    for name, value in model.named_parameters():
        touched = value.grad is not None and bool(value.grad.any())
        has_image = any(
            part in name for part in ("transformer_model.encoder.", "enc_to_dec", "crossattention", "cross_attn")
        )
        assert touched != has_image, name


def test_a_batch_of_masked_captions_has_no_loss_and_does_not_break() -> None:
    model = captioner().train()
    data = batch()
    data["attention_mask"].zero_()
    loss = model(**data)["loss"]
    loss.backward()
    assert loss == 0 and model.get_metrics() == {}


def test_the_shape_of_a_subset_of_exits() -> None:
    model = captioner(decoder={"exit_layers": [3, 6]})
    assert model.exit_layers == [3, 6] and model.num_exits == 2
    found = model.generate({"pixel_values": images(2)}, max_length=4, policy=policy(type="fixed_exit", exit=1))
    assert all(isinstance(caption, GeneratedCaption) and set(caption.exits) == {1} for caption in found)


@pytest.mark.parametrize("shortlist", [None, 6])
def test_a_trace_says_what_each_exit_says_of_each_word(shortlist: int | None) -> None:
    model = captioner(decoder={"signals": ["predicted_error"], "shortlist": shortlist}, chunk_elements=WORDS * 4)
    data = batch()
    halves = [{name: value[rows] for name, value in data.items()} for rows in ([3, 1], [0, 4, 2])]
    trace = trace_captions(model, halves, "made up")
    counts = (data["attention_mask"].sum(1) - 1).tolist()
    assert trace.caption.tolist() == [row for row, count in enumerate(counts) for _ in range(count)]
    assert trace.position.tolist() == [position for count in counts for position in range(count)]
    assert trace.target.tolist() == data["input_ids"][:, 1:][data["attention_mask"][:, 1:].bool()].tolist()
    assert set(trace.signals) == {"similarity", "position", "predicted_error"}
    assert trace.meta["exit_layers"] == [1, 2, 3, 4, 5, 6] and trace.num_labels == WORDS
    with torch.no_grad():
        tokens = data["input_ids"]
        states = model.decoder.image_states(data)
        for number, hidden, previous in model.decoder.exit_states(tokens[:, :-1], states):
            words = data["attention_mask"][:, 1:].bool()
            similarity = functional.cosine_similarity(hidden[words], previous[words], dim=-1)
            torch.testing.assert_close(trace.signals["similarity"][:, number - 1], similarity, rtol=1e-3, atol=1e-3)
            top = model.decoder.exit_logits(number, hidden[words]).softmax(-1).max(-1)
            if shortlist is None or number in (1, 6):
                torch.testing.assert_close(trace.top_probability[:, number - 1], top.values, rtol=1e-3, atol=1e-3)
    assert model.exit_policy.calibrate(trace).samples == len(trace)


def test_an_exit_policy_is_calibrated_on_the_chosen_target() -> None:
    for target, error in (("reference", None), ("last_exit", 0.0)):
        model = captioner(calibration_target=target, exit_policy={"type": "beem", "weights": "cost"})
        report = model.exit_policy.calibrate(trace_captions(model, [batch()], "made up"))
        assert error is None or report.final_error == error
        assert replay(model.exit_policy, trace_captions(model, [batch()], "made up")).exits.max() <= 6


def test_a_decoder_starts_as_another_archives(tmp_path: Path) -> None:
    trained = captioner(7, end=1.0)
    save_state(trained.state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "config.json").write_text("{}")
    for source in (str(tmp_path / "weights.safetensors"), {"archive": str(tmp_path)}):
        model = captioner(8, end=1.0, initialize_from=source)
        for name, value in model.state_dict().items():
            same = torch.equal(value, trained.state_dict()[name])
            kept = any(
                part in name for part in ("transformer_model.encoder.", "enc_to_dec", "crossattention", "cross_attn")
            )
            assert same or kept, name
        assert not torch.equal(
            model.state_dict()["decoder.backbone.transformer_model.enc_to_dec_proj.weight"],
            trained.state_dict()["decoder.backbone.transformer_model.enc_to_dec_proj.weight"],
        )
    whole = captioner(8, end=1.0, initialize_from={"archive": str(tmp_path), "exclude": []})
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in whole.state_dict().items())


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_state({"decoder.exits.0.norm.weight": torch.ones(5)}, path)
    with pytest.raises(ConfigurationError, match="decoder.exits.0.norm.weight has shape \\(5,\\)"):
        captioner(initialize_from=str(path))
    save_state({"encoder.x": torch.ones(5)}, path)
    with pytest.raises(ConfigurationError, match="has no parameter in common with the model"):
        InitialWeights(str(path)).copy_into(captioner())
    with pytest.raises(ConfigurationError, match="no such weights file"):
        InitialWeights(str(tmp_path / "none.th")).copy_into(captioner())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"decoder": {"exit_layers": [2, 3]}}, "exit_layers: found \\[2, 3\\]"),
        ({"decoder": {"signals": ["similarity"]}}, "decoder.signals: found 'similarity'"),
        ({"decoder": {"shortlist": 51}}, "decoder.shortlist: found 51, allowed: 2 to 50"),
        ({"exit_policy": {"type": "predicted_error", "thresholds": 0.5}}, "needs the signals"),
        ({"calibration_target": "teacher"}, "model.calibration_target"),
        ({"decoding": {"num_beams": 0}}, "decoding.num_beams: found 0"),
        ({"objective": {"type": "learned_exit"}}, "model.objective"),
    ],
)
def test_a_wrong_config_is_named(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        captioner(**keys)


def test_a_few_steps_teach_a_caption_by_heart() -> None:
    """All exits learn from one sentence an image, and the policy then leaves early with the right words."""
    torch.manual_seed(0)
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 16}
    model = captioner(
        decoder={
            "backbone": {
                "encoder": {
                    "model_type": "vit",
                    "hidden_size": 24,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 32,
                    "image_size": 16,
                    "patch_size": 8,
                },
                "decoder": gpt2,
            }
        }
    )
    assert isinstance(model, MultiExitCaptioner)
    data = batch(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(60):
        optimizer.zero_grad()
        model(**data)["loss"].backward()
        optimizer.step()
    model.get_metrics(reset=True)
    model.eval()
    rule = policy(type="max_probability", thresholds=0.6)
    for row, caption in enumerate(model.generate(data, max_length=10, policy=rule)):
        length = int(data["attention_mask"][row].sum())
        assert [BOS, *caption.tokens] == data["input_ids"][row, :length].tolist()
        assert min(caption.exits) < 4


@pytest.mark.parametrize(
    "config",
    [
        {"type": "expected_gain", "thresholds": {"type": "budget", "speedup": 2}},
        {"type": "voting", "thresholds": {"type": "budget", "speedup": 2}},
        {"type": "cascaded_ensemble", "thresholds": 0.9, "weights": "fit"},
        {"type": "calibrated", "policy": {"type": "max_probability", "thresholds": 0.9}},
    ],
    ids=lambda config: config["type"],
)
def test_rules_that_captions_cannot_fit_are_refused_when_the_model_is_built(config: dict[str, Any]) -> None:
    message = rf"model\.exit_policy: found {config['type']} with parameters that are not set"
    with pytest.raises(ConfigurationError, match=message):
        captioner(exit_policy=config)
    given = {"type": "voting", "thresholds": 0.9}
    assert captioner(exit_policy=given).generate({"pixel_values": images(2)}, max_length=3)


@pytest.mark.parametrize(
    ("decoding", "words"),
    [
        ({"max_length": 33}, r"model\.decoding\.max_length: found 33, allowed: 1 to 32"),
        ({"num_beams": 26}, r"model\.decoding\.num_beams: found 26, allowed: 1 to 25"),
    ],
)
def test_searches_that_the_decoder_cannot_make_are_refused_when_the_model_is_built(
    decoding: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        captioner(decoding=decoding)
    assert captioner(decoding={name: number - 1 for name, number in decoding.items()})


@pytest.mark.parametrize("decoding", [{}, {"image_exit": {"threshold": 0.9}}])
def test_images_of_another_size_than_the_encoders_are_refused_by_their_keys(decoding: dict[str, Any]) -> None:
    model = captioner(decoding=decoding, exit_policy={"type": "patience", "patience": 1})
    data = {**batch(), "pixel_values": torch.zeros(5, 3, 24, 32)}
    words = r"dataset_reader\.image_processor .*found images of 24 x 32 pixels, allowed: 16 x 16.*encoder\.image_size"
    for use in (lambda: model(**data), lambda: model.decode(data), lambda: trace_captions(model, [data], "test")):
        with pytest.raises(ConfigurationError, match=words):
            use()
