"""The loss of an exit on a sample, divergences between exits, and means over the samples whose label is known."""

import torch
from torch import Tensor
from torch.nn import functional

from beem_plugin.common.metrics import known_labels


def exit_loss(logits: Tensor, label: Tensor) -> Tensor:
    """
    `(batch, exits)` float32: CE(p_i, y) = -ln p_i(y), or (y_i - y)^2; of samples without label something finite, which
    `mean_over_known` drops. `logits` are `(batch, exits, labels)`, of a regression `(batch, exits, 1)`, the values;
    `label` `(batch,)` int64, -1 where unknown; of a regression floating, NaN where unknown.
    """
    if label.is_floating_point():
        return difference(logits, label) ** 2
    samples, num_exits, num_labels = logits.shape
    target = label.clamp_min(0).unsqueeze(1).expand(samples, num_exits)
    losses = functional.cross_entropy(logits.float().reshape(-1, num_labels), target.reshape(-1), reduction="none")
    return losses.reshape(samples, num_exits)


def exit_error(logits: Tensor, label: Tensor) -> Tensor:
    """
    `(batch, exits)` in [0, 1], without gradient: whether exit i is wrong; |tanh(y_i - y)| in a regression (BERxiT).
    """
    if not label.is_floating_point():
        return (logits.argmax(-1) != label.unsqueeze(1)).float()
    return difference(logits.detach(), label).tanh().abs()


def difference(logits: Tensor, label: Tensor) -> Tensor:
    """`(batch, exits)` float32: y_i - y."""
    # An unknown label must not come near the graph: the gradient of a NaN is NaN, even of one that is dropped later.
    return logits.float().squeeze(-1) - label.float().nan_to_num(nan=0.0).unsqueeze(1)


def mean_over_known(values: Tensor, label: Tensor) -> Tensor:
    """The mean of `values`, `(batch, ...)`, over the samples whose label is known; 0 if there is none."""
    known = known_labels(label)
    dropped = values.masked_fill(~known.reshape(-1, *[1] * (values.dim() - 1)), 0.0)
    return dropped.sum(0) / known.sum().clamp_min(1)


def mean_exit_losses(logits: Tensor, label: Tensor) -> Tensor:
    """`(exits,)` means of `exit_loss` over the samples whose label is known."""
    return mean_over_known(exit_loss(logits, label), label)


def loss_name(label: Tensor) -> str:
    """What the log calls `exit_loss`."""
    return "squared_error" if label.is_floating_point() else "cross_entropy"


DIRECTIONS = ("teacher_student", "student_teacher", "symmetric")


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) = sum_c p(c) (ln p(c) - ln q(c)) over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def pairwise_cross_entropy(log_p: Tensor, log_q: Tensor) -> Tensor:
    """
    `(batch, exits i, exits j)` CE(p_j, q_i) of all pairs, from `(batch, exits, labels)` float32 log-probabilities.
    """
    # A matrix product, so that pairs of exits need no memory of the vocabulary's size; in float32, which mixed
    # precision would not leave it.
    with torch.autocast(log_p.device.type, enabled=False):
        return -(log_q @ log_p.exp().transpose(1, 2))


def pairwise_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`(batch, exits i, exits j)` KL(p_j || q_i); see `pairwise_cross_entropy`."""
    entropy = -(log_p.exp() * log_p).sum(-1)
    return pairwise_cross_entropy(log_p, log_q) - entropy.unsqueeze(1)


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float, direction: str) -> Tensor:
    """
    `(...)` from `(..., labels)` logits divided by the temperature, times its square. `"teacher_student"`: KL(teacher ||
    student), as in most code; `"student_teacher"`: KL(student || teacher), as FastBERT and BEEM print it;
    `"symmetric"`: half of each. Of a regression's `(..., 1)` values, the squared difference.
    """
    if student.shape[-1] == 1:
        return (student - teacher).squeeze(-1).square()
    log_p, log_q = ((logits.float() / temperature).log_softmax(-1) for logits in (student, teacher))
    pair = (log_q.expand_as(log_p), log_p)
    if direction == "symmetric":
        return (kl_divergence(*pair) + kl_divergence(*reversed(pair))) / 2 * temperature**2
    return kl_divergence(*(pair if direction == "teacher_student" else reversed(pair))) * temperature**2
